//! Command lines of pasta, and what they become.

use super::super::split;
use super::*;

/// Returns towpath's command line for pasta's arguments without ports, separated by spaces, or the
/// error.
fn read(arguments: &str) -> Result<String, String> {
    read_all(&format!("-t none -u none {arguments}"))
}

fn read_all(arguments: &str) -> Result<String, String> {
    Translated::shown(translate(&split(arguments)))
}

fn wrong(arguments: &str) -> String {
    read(arguments).expect_err(arguments)
}

/// Goal: the calls of container engines become what they mean.
#[test]
fn calls_of_container_engines() {
    let podman = "--config-net -t 8080-8080:80-80 --dns-forward 169.254.1.1 -u none -T none \
                  -U none --no-map-gw --quiet --netns /run/user/1000/netns/netns-X \
                  --map-guest-addr 169.254.1.2";
    assert_eq!(
        read(podman).unwrap(),
        "attach --copy-host --mtu=65520 --dns-forward=169.254.1.1 --map-host=169.254.1.2 --daemon \
         --tcp-ports=8080-8080:80-80 --quiet --netns=/run/user/1000/netns/netns-X"
    );
    let rootlesskit = "--foreground --stderr --ns-ifname=tap0 --mtu=65520 --no-dhcp --no-ra \
                       --address=10.0.2.100 --netmask=24 --gateway=10.0.2.2 \
                       --dns-forward=10.0.2.3 --no-map-gw --ipv4-only --tcp-ports=none \
                       --udp-ports=none 4711";
    assert_eq!(
        read(rootlesskit).unwrap(),
        "attach --copy-host --mtu=65520 --address=10.0.2.100/24 --dns-forward=10.0.2.3 --ipv4-only \
         --no-config --ifname=tap0 --gateway=10.0.2.2 4711"
    );
    let detached = "--config-net --userns=/proc/7/ns/user --netns=/run/x/netns";
    assert_eq!(
        read(detached).unwrap(),
        "attach --copy-host --mtu=65520 --map-gateway --userns=/proc/7/ns/user --daemon \
         --netns=/run/x/netns"
    );
    let own = "--config-net -a 10.9.8.2 -n 24 -g 10.9.8.1 -I tap7 -m 1280 \
               --ns-mac-addr 9a:dd:31:ea:92:98 --pid /run/x.pid --netns box --no-netns-quit";
    assert_eq!(
        read(own).unwrap(),
        "attach --copy-host --mtu=1280 --address=10.9.8.2/24 --map-gateway --daemon --stay \
         --pid-file=/run/x.pid --gateway=10.9.8.1 --ifname=tap7 --mac=9a:dd:31:ea:92:98 \
         --netns=/run/netns/box"
    );
}

#[test]
fn a_command_is_run() {
    assert_eq!(
        read("-q sh -c x").unwrap(),
        "run --map-root --copy-host --mtu=65520 --map-gateway --quiet -- sh -c x"
    );
    assert_eq!(read("").unwrap(), "run --map-root --copy-host --mtu=65520 --map-gateway --");
    assert!(read("12 34").unwrap().ends_with(" -- 12 34"), "a PID is alone");
}

/// Goal: without options, ports that programs open are published, as pasta does.
#[test]
fn ports_are_followed_by_default() {
    assert!(read_all("1").unwrap().ends_with("--tcp-ports=auto --udp-ports=auto 1"));
    assert!(read_all("-u none 1").unwrap().ends_with("--daemon --tcp-ports=auto 1"));
    let all = read_all("-t 80 -u auto --host-lo-to-ns-lo 1").unwrap();
    assert!(all.ends_with("--tcp-ports=80 --udp-ports=auto --join-loopback 1"), "{all}");
    let none = read_all("-t none -u 53 --host-lo-to-ns-lo 1").unwrap();
    assert!(none.ends_with("--daemon --udp-ports=53 1"), "no TCP port is there to join: {none}");
}

#[test]
fn the_last_of_two_counts() {
    assert!(read("-I one -I two 1").unwrap().contains("--daemon --ifname=two 1"));
    assert!(read("-m 1400 --mtu 1500 1").unwrap().contains(" --mtu=1500 "));
    assert!(read_all("-u none -U none -U 53 1").unwrap().contains(" --host-udp-ports=53 "));
    let both = read("-t 80 -t 81 -u 53 1").unwrap();
    assert!(both.ends_with("--tcp-ports=80 --tcp-ports=81 --udp-ports=53 1"), "{both}");
    assert!(read("-d --trace 1").unwrap().ends_with("--daemon --verbose 1"));
}

/// Goal: an address of an IP version that is off does not count, as podman passes IPv4 addresses in
/// any case.
#[test]
fn addresses_count_with_their_version() {
    let only6 = read("-6 --dns-forward 169.254.1.1 --map-guest-addr 169.254.1.2 1").unwrap();
    assert_eq!(only6, "attach --copy-host --mtu=65520 --ipv6-only --map-gateway --daemon 1");
    let only4 = read("-4 --dns-forward fd00::1 --dns-forward 10.0.2.3 1").unwrap();
    assert!(only4.contains("--dns-forward=10.0.2.3 --ipv4-only"), "{only4}");
    assert!(!read("--map-host-loopback 10.1.1.1 1").unwrap().contains("--map-gateway"));
    let nothing = read("--map-host-loopback none --map-guest-addr none 1").unwrap();
    assert_eq!(nothing, "attach --copy-host --mtu=65520 --daemon 1");
    let both = read("-a fd00::2/80 -a 10.0.0.2 -n 255.255.0.0 1").unwrap();
    assert!(both.contains("--address=fd00::2 --address=10.0.0.2/16"), "{both}");
}

#[test]
fn version_and_help() {
    assert!(read("--version").unwrap().starts_with("pasta (towpath "));
    assert!(read("--config-net --version --nonsense").is_err(), "it is parsed");
    let help = read("--help").unwrap();
    for option in ["--config-net", "-t, --tcp-ports VALUE", "--netns VALUE", "--map-guest-addr"] {
        assert!(help.contains(option), "{option}");
    }
    assert!(!help.contains("--vhost-user"), "refused");
}

/// Goal: each option has an error that names it, for a missing or a wrong argument.
#[test]
fn wrong_arguments_are_refused_by_name() {
    for known in KNOWN {
        let name = known.long;
        if known.takes {
            let reported = format!("option '--{name}' requires an argument");
            assert_eq!(wrong(&format!("--{name}")), reported);
        } else {
            let reported = format!("option '--{name}' doesn't allow an argument");
            assert_eq!(wrong(&format!("--{name}=x")), reported);
        }
        if let Refused(instead) = known.meaning {
            let value = if known.takes { "=1" } else { "" };
            let reported = format!("option --{name} is not supported; {instead}");
            assert_eq!(wrong(&format!("--{name}{value} 1")), reported);
        }
    }
    assert_eq!(wrong("--nonsense"), "unrecognized option '--nonsense'");
    assert!(wrong("-a 10.0.0 1").contains("'10.0.0' is not an IP address"));
    assert!(wrong("-a 10.0.0.1/x 1").contains("'x' is not a netmask"));
    for mask in ["x", "0", "129", "255.0.255.0", "-1", ""] {
        let arguments = ["-a", "10.0.0.1", "-n", mask, "1"].map(OsString::from);
        let error = translate(&arguments).unwrap_err().to_string();
        assert!(error.contains("is not a netmask"), "{mask}: {error}");
    }
    assert!(wrong("-n 24 1").contains("--netmask needs --address"));
    for option in ["dns-forward", "map-host-loopback", "map-guest-addr"] {
        let reported = wrong(&format!("--{option} x 1"));
        assert!(reported.starts_with(&format!("option --{option}: 'x' is not")), "{reported}");
    }
    assert!(wrong("-4 -6 1").contains("exclude each other"));
    assert!(wrong("-D none 1").contains("not supported"));
    assert!(wrong("--netns x 1").contains("excludes '1'"));
    assert!(wrong("-P /x sh").contains("--pid is not supported with a command"));
    assert!(wrong("-l /x sh").contains("--log-file is not supported with a command"));
}

#[test]
fn names_of_options_are_unique() {
    for (index, one) in KNOWN.iter().enumerate() {
        for other in &KNOWN[index + 1..] {
            assert_ne!(one.long, other.long);
            assert!(one.short == 0 || one.short != other.short, "{}", other.long);
        }
    }
}

#[test]
fn several_addresses() {
    assert_eq!(
        read("-a 10.0.0.2 -n 24 -a 10.0.0.3 --no-copy-addrs --no-copy-routes 7").unwrap(),
        "attach --copy-host --mtu=65520 --address=10.0.0.2/24 --address=10.0.0.3/24 \
         --map-gateway --daemon --single-address --single-route 7"
    );
}
