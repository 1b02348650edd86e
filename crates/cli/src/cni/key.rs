//! The names of containers in a network.
//!
//! A plugin ends after each call and keeps no files. So the name of a container's port, and the
//! address of its interface, follow from what each call names: the network of the engine, the
//! container and the interface. The name begins with [`Prefix`], by which the ports of one engine's
//! network are found again. Names have 15 bytes at most, so these are hashes: with as many ports as
//! a network can have, two have the same one by chance once in 30 million networks. The second one
//! is refused then.

use towpath_net::wire::MacAddr;

/// First letter of all names.
const LETTER: char = 'c';
/// Characters, each for five bits.
const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
/// Characters of a name that stand for the engine's network, and for the container.
const NETWORK_LEN: u32 = 6;
const CONTAINER_LEN: u32 = 8;

/// What the names of all containers of an engine's network begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prefix(String);

/// A container at one of its interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The name of its port.
    pub(super) port: String,
    /// The link-layer address of its interface, unless it is given another one.
    pub(super) mac: MacAddr,
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
        let [.., a, b, c, d, e] = hash.to_be_bytes();
        Key {
            port: self.0.clone() + &digits(hash, CONTAINER_LEN),
            // Locally administered, for one station.
            mac: MacAddr([0x02, a, b, c, d, e]),
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
        assert_eq!(key.mac.to_string(), "02:3a:ce:44:0f:90");
    }

    #[test]
    fn keys_differ() {
        let mut ports = HashSet::new();
        for network in ["a", "b", ""] {
            let prefix = Prefix::of(network);
            for container in ["a", "ab", "b", "c1"] {
                for interface in ["eth0", "eth1", "beth0"] {
                    let key = prefix.key(container, interface);
                    assert_eq!(key.port.len(), 15, "{}", key.port);
                    assert!(prefix.is_of(&key.port));
                    assert!(!Prefix::of("other").is_of(&key.port));
                    ports.insert((key.port, key.mac.to_string()));
                }
            }
        }
        assert_eq!(ports.len(), 3 * 4 * 3);
        for other in ["c", "vm1", "c000000", "c00000000000000-"] {
            assert!(!Prefix("c000000".to_owned()).is_of(other), "{other}");
        }
    }
}
