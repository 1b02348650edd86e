//! The names of containers in a network.
//!
//! A plugin ends after each call and keeps no files. So the name of a container's port follows from
//! what each call names: the network of the engine, the container and the interface. The name
//! begins with [`Prefix`], by which the ports of one engine's network are found again. Names have
//! 15 bytes at most, so these are hashes: with as many ports as a network can have, two have the
//! same one by chance once in 30 million networks. The second one is refused then.
//!
//! The address of an interface follows from the name of its port and from the host, as networks of
//! several hosts may be joined, and containers of one name on each of them.

use std::fs;
use std::net::IpAddr;

use towpath_net::wire::MacAddr;

/// First letter of all names.
const LETTER: char = 'c';
/// Characters, each for five bits.
const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
/// Characters of a name that stand for the engine's network, and for the container.
const NETWORK_LEN: u32 = 6;
const CONTAINER_LEN: u32 = 8;
/// Names the machine; cloned machines may have the same (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";

/// What the names of all containers of an engine's network begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prefix(String);

/// A container at one of its interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The name of its port.
    pub(super) port: String,
}

/// What distinguishes hosts whose networks are joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    machine: String,
    vtep: String,
}

impl Prefix {
    /// Returns the prefix for an engine's network.
    pub(super) fn of(network: &str) -> Self {
        Self(LETTER.to_string() + &digits(hash(&[network]), NETWORK_LEN))
    }

    /// Returns true if it may be the name of one of these containers.
    pub(super) fn is_of(&self, port: &str) -> bool {
        let rest = port.strip_prefix(self.0.as_str());
        rest.is_some_and(|rest| {
            rest.len() == CONTAINER_LEN as usize && rest.bytes().all(|byte| DIGITS.contains(&byte))
        })
    }

    /// Returns the key of a container at the interface `interface`.
    pub(super) fn key(&self, container: &str, interface: &str) -> Key {
        let hash = hash(&[&self.0, container, interface]);
        Key { port: self.0.clone() + &digits(hash, CONTAINER_LEN) }
    }
}

impl Key {
    /// Returns the link-layer address of its interface on a host, unless it is given another one.
    pub(super) fn mac(&self, host: &Host) -> MacAddr {
        let [.., a, b, c, d, e] = hash(&[&self.port, &host.machine, &host.vtep]).to_be_bytes();
        // Locally administered, for one station.
        MacAddr([0x02, a, b, c, d, e])
    }
}

impl Host {
    /// Returns this host. `vtep` is where the VXLAN ports of the network end here: no two hosts
    /// have the same. If networks are joined in another way, only the machine differs.
    pub(super) fn this(vtep: Option<IpAddr>) -> Self {
        Self {
            // Of systems without it, only the ends of tunnels differ.
            machine: fs::read_to_string(MACHINE_ID).unwrap_or_default(),
            vtep: vtep.map(|vtep| vtep.to_string()).unwrap_or_default(),
        }
    }
}

/// Returns the last bits of a hash as text of `len` characters.
fn digits(hash: u64, len: u32) -> String {
    (0..len).map(|at| char::from(DIGITS[(hash >> (5 * at)) as usize % DIGITS.len()])).collect()
}

/// FNV-1a with 64 bits, and the bits mixed at the end. Each text ends with a byte that none
/// contains. It must never change: a container of yesterday is found by it.
fn hash(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0xff]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    // The end of MurmurHash3: each bit of the result depends on all bits.
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Goal: a plugin of the next version finds the containers of this one.
    #[test]
    fn keys_never_change() {
        let key = Prefix::of("towpath").key("752947ff91f9", "eth0");
        assert_eq!(key.port, "cjs8m13gs3847b7");
    }

    /// Goal: containers of one name on two hosts have two addresses, whichever thing distinguishes
    /// the hosts; on one host the address stays.
    #[test]
    fn addresses_differ_between_hosts() {
        let of = |machine: &str, vtep: &str| {
            let host = Host { machine: machine.to_owned(), vtep: vtep.to_owned() };
            Prefix::of("towpath").key("one", "eth0").mac(&host)
        };
        let hosts = [("", ""), ("a", ""), ("b", ""), ("a", "192.0.2.11"), ("a", "192.0.2.12")];
        let macs: HashSet<MacAddr> =
            hosts.iter().map(|(machine, vtep)| of(machine, vtep)).collect();
        assert_eq!(macs.len(), hosts.len());
        for mac in macs {
            assert_eq!(mac.0[0] & 3, 2, "{mac} is locally administered, and of one station");
        }
        assert_eq!(of("a", "192.0.2.11"), of("a", "192.0.2.11"));
        let vtep = "192.0.2.11".parse().ok();
        assert_eq!(Host::this(vtep), Host::this(vtep));
        assert_ne!(Host::this(vtep), Host::this(None));
    }

    #[test]
    fn keys_differ() {
        let (mut ports, mut macs) = (HashSet::new(), HashSet::new());
        for network in ["a", "b", ""] {
            let prefix = Prefix::of(network);
            for container in ["a", "ab", "b", "c1"] {
                for interface in ["eth0", "eth1", "beth0"] {
                    let key = prefix.key(container, interface);
                    assert_eq!(key.port.len(), 15, "{}", key.port);
                    assert!(prefix.is_of(&key.port));
                    assert!(!Prefix::of("other").is_of(&key.port));
                    macs.insert(key.mac(&Host::default()));
                    ports.insert(key.port);
                }
            }
        }
        assert_eq!((ports.len(), macs.len()), (3 * 4 * 3, 3 * 4 * 3));
        for other in ["c", "vm1", "c000000", "c00000000000000-"] {
            assert!(!Prefix("c000000".to_owned()).is_of(other), "{other}");
        }
    }
}
