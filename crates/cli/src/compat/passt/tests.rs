//! Command lines of passt, and what they become.

use super::super::split;
use super::*;

/// Returns towpath's command line for passt's arguments, separated by spaces, or the error.
fn read(arguments: &str) -> Result<String, String> {
    read_all(&split(arguments))
}

fn read_all(arguments: &[OsString]) -> Result<String, String> {
    Translated::shown(translate(arguments))
}

fn wrong(arguments: &str) -> String {
    read(arguments).expect_err(arguments)
}

/// Goal: the calls of QEMU, libvirt and launchers of small machines become what they mean.
#[test]
fn calls_of_launchers() {
    let qemu = "--quiet --pid /tmp/passt-XXXXXX.pid --fd 3";
    assert_eq!(
        read(qemu).unwrap(),
        "up --stream-fd=vm=3 --one-off --copy-host --mtu=65520 --map-gateway --daemon \
         --pid-file=/tmp/passt-XXXXXX.pid --quiet"
    );
    let qemu = "--vhost-user --quiet --mtu 1500 --address 10.9.8.2 --netmask 24 --gateway 10.9.8.1 \
                --fqdn vm.example.org --tcp-ports 2222:22,8080:80 --pid /x.pid --fd 3";
    assert_eq!(
        read(qemu).unwrap(),
        "up --vhost-user-fd=vm=3 --one-off --copy-host --mtu=1500 --address=10.9.8.2/24 \
         --map-gateway --lease=port=vm,name=vm --domain=example.org --daemon --pid-file=/x.pid \
         --quiet --gateway=10.9.8.1 --tcp-ports=vm=2222:22,8080:80"
    );
    let libvirt = "--vhost-user --one-off --socket /run/a.socket --pid /run/a.pid --interface eth0 \
                   --log-file /var/log/a.log --hostname web --tcp-ports 127.0.0.1%lo/2222:22,~2223";
    assert_eq!(
        read(libvirt).unwrap(),
        "up --vhost-user=vm=/run/a.socket --one-off --copy-host=eth0 --mtu=65520 --map-gateway \
         --lease=port=vm,name=web --print-addresses --daemon --pid-file=/run/a.pid \
         --log-file=/var/log/a.log --tcp-ports=vm=127.0.0.1%lo/2222:22,~2223"
    );
    let krun = "--fd 7 --foreground -4 -t 2222:22";
    assert_eq!(
        read(krun).unwrap(),
        "up --stream-fd=vm=7 --one-off --copy-host --mtu=65520 --ipv4-only --map-gateway \
         --print-addresses --tcp-ports=vm=2222:22"
    );
    assert_eq!(
        read("").unwrap(),
        "up --stream=vm=/tmp/passt_%i.socket --copy-host --mtu=65520 --map-gateway \
         --print-addresses --daemon"
    );
}

/// Goal: what a machine gets by DHCP and router advertisements is passed on.
#[test]
fn what_machines_get() {
    let none = read("-q --no-dhcp --no-dhcpv6 --no-ra --no-dhcp-dns --no-dhcp-search").unwrap();
    assert!(none.contains(" --no-dhcp-search --daemon "), "{none}");
    assert!(none.ends_with(" --quiet --no-dhcpv4 --no-dhcpv6 --no-ra --no-dhcp-dns"), "{none}");
    assert!(read("-D none --no-dhcp-dns").unwrap().ends_with(" --no-dhcp-dns"), "once");
    assert!(read("-D 192.0.2.9").unwrap().ends_with(" --dns=192.0.2.9"));
    let search = ["-S", "a.example b.example"].map(OsString::from);
    let searched = read_all(&search).unwrap();
    assert!(searched.contains(" --search=a.example --search=b.example "), "{searched}");
    assert!(read_all(&["-S", ""].map(OsString::from)).unwrap().contains(" --no-dhcp-search "));
    assert!(read("-M 02:00:00:00:00:09").unwrap().ends_with(" --gateway-mac=02:00:00:00:00:09"));
    let named = read("-H web.example.org --fqdn vm.example.net").unwrap();
    assert!(named.contains("name=web --domain=example.net "), "{named}");
    assert!(!read("-t none -u none").unwrap().contains("ports"));
    assert!(!read("--no-map-gw").unwrap().contains("--map-gateway"));
}

#[test]
fn version_help_and_capabilities() {
    assert!(read("--version").unwrap().starts_with("passt (towpath "));
    let help = read("--help").unwrap();
    for option in ["-s, --socket VALUE", "-F, --fd VALUE", "--vhost-user", "-a, --address VALUE"] {
        assert!(help.contains(option), "{option}");
    }
    for option in ["--netns", "--repair-path", "--config-net"] {
        assert!(!help.contains(option), "{option}");
    }
    let told = read("--print-capabilities").unwrap();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told, serde_json::json!({ "type": "net" }));
}

/// Goal: each option has an error that names it, for a missing or a wrong argument.
#[test]
fn wrong_arguments_are_refused_by_name() {
    for known in KNOWN.iter() {
        let name = known.long;
        if known.takes {
            let told = format!("option '--{name}' requires an argument");
            assert_eq!(wrong(&format!("--{name}")), told);
        } else {
            let told = format!("option '--{name}' doesn't allow an argument");
            assert_eq!(wrong(&format!("--{name}=x")), told);
        }
        let refused = match known.meaning {
            AsPasta(shared) => match shared.meaning {
                Shared::Refused(instead) => instead,
                _ => continue,
            },
            Refused(instead) => instead,
            _ => continue,
        };
        let value = if known.takes { "=1" } else { "" };
        let told = format!("option --{name} is not supported; {refused}");
        assert_eq!(wrong(&format!("--{name}{value}")), told);
    }
    assert_eq!(wrong("--nonsense"), "unrecognized option '--nonsense'");
    assert_eq!(wrong("--netns x"), "unrecognized option '--netns'");
    assert_eq!(wrong("-T 80"), "invalid option -- 'T'");
    assert!(wrong("sh").contains("unexpected argument 'sh'"));
    assert!(wrong("-F 3 -s /x").contains("exclude each other"));
    for number in ["x", "", "-1", "0", "2", "99999999999"] {
        let arguments = ["--fd", number].map(OsString::from);
        let told = read_all(&arguments).unwrap_err();
        assert!(told.contains("is not a file descriptor"), "{number}: {told}");
    }
    for name in ["vm", ".example", "vm."] {
        assert!(wrong(&format!("--fqdn {name}")).contains("has no domain"), "{name}");
    }
    assert!(wrong("-a 10.0.0").contains("is not an IP address"));
    assert!(wrong("-4 -6").contains("exclude each other"));
}

#[test]
fn names_of_options_are_unique() {
    for (index, one) in KNOWN.iter().enumerate() {
        for other in &KNOWN[index + 1..] {
            assert_ne!(one.long, other.long);
            assert!(one.short == 0 || one.short != other.short, "{}", other.long);
        }
    }
    for name in OF_NAMESPACES {
        assert!(pasta::KNOWN.iter().any(|known| known.long == *name), "{name}");
    }
}
