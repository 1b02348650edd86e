//! Command lines of slirp4netns, and what they become.

use super::super::split;
use super::*;

/// Returns towpath's command line for arguments separated by spaces, or the error.
fn read(arguments: &str) -> Result<String, String> {
    Translated::shown(translate(&split(arguments)))
}

fn wrong(arguments: &str) -> String {
    read(arguments).expect_err(arguments)
}

/// Goal: the calls of container engines become what they mean.
#[test]
fn calls_of_container_engines() {
    let podman = "--disable-host-loopback --mtu=1400 --enable-sandbox --enable-seccomp \
                  --cidr=10.77.0.0/24 --enable-ipv6 -c -e 3 -r 4 \
                  --api-socket /run/user/1000/libpod/tmp/CID.net --netns-type=path \
                  /run/user/1000/netns/netns-X tap0";
    assert_eq!(
        read(podman).unwrap(),
        "attach --address=10.77.0.100/24 --gateway=10.77.0.2 --dns-forward=10.77.0.3 \
         --address=fd00::64/64 --gateway=fd00::2 --dns-forward=fd00::3 --mtu=1400 --ifname=tap0 \
         --exit-fd=3 --ready-fd=4 --port-socket=/run/user/1000/libpod/tmp/CID.net \
         --netns=/run/user/1000/netns/netns-X"
    );
    assert_eq!(
        read("--mtu 65520 -r 3 -c 4711 tap0").unwrap(),
        "attach --address=10.0.2.100/24 --gateway=10.0.2.2 --dns-forward=10.0.2.3 --ipv4-only \
         --map-gateway --mtu=65520 --ifname=tap0 --ready-fd=3 4711"
    );
    let rootlesskit = "--mtu 65520 -r 3 --disable-host-loopback --enable-ipv6 4711 tap0";
    assert_eq!(
        read(rootlesskit).unwrap(),
        "attach --address=10.0.2.100/24 --gateway=10.0.2.2 --dns-forward=10.0.2.3 \
         --address=fd00::64/64 --gateway=fd00::2 --dns-forward=fd00::3 --no-config=ipv4 \
         --mtu=65520 --ifname=tap0 --ready-fd=3 4711"
    );
    let detached = "--mtu 65520 -r 3 --disable-host-loopback --userns-path=/proc/self/ns/user \
                    --netns-type=path /proc/1/root/tmp/rootlesskitN/netns tap0";
    assert_eq!(
        read(detached).unwrap(),
        "attach --address=10.0.2.100/24 --gateway=10.0.2.2 --dns-forward=10.0.2.3 --ipv4-only \
         --no-config --mtu=65520 --ifname=tap0 --ready-fd=3 --userns=/proc/self/ns/user \
         --netns=/proc/1/root/tmp/rootlesskitN/netns"
    );
}

#[test]
fn forms_of_options() {
    let plain = read("-c 7 tap0").unwrap();
    for form in ["7 tap0 -c", "7 -c tap0", "--conf 7 tap0", "-c 7 tap0 more", "-c -- 7 tap0"] {
        assert_eq!(read(form).unwrap(), plain, "{form}");
    }
    assert_eq!(read("-ce3 7 tap0"), read("-c --exit-fd=3 7 tap0"));
    assert!(read("-e 3 -e 4 7 tap0").unwrap().ends_with("--ifname=tap0 --exit-fd=4 7"));
    assert!(read("-m 65521 7 tap0").unwrap().contains("--mtu=65520"));
    assert!(read("--disable-dns -6 7 tap0").unwrap().contains("--no-dns --address=fd00::64/64"));
    assert!(!read("--disable-dns -6 7 tap0").unwrap().contains("--dns-forward"));
    assert!(read("-c --macaddress 0a:0:0:0:0:1 7 t").unwrap().contains("--mac=0a:0:0:0:0:1"));
    assert_eq!(read("--target-type=netns --netns-type pid -c 7 tap0").unwrap(), plain);
    assert!(read("--cidr 10.0.2.0/25 7 t").unwrap().contains("--address=10.0.2.100/25"));
    let userns = read("--userns-path=/x --userns-path /proc/7/ns/user 7 tap0").unwrap();
    assert!(userns.ends_with("--ifname=tap0 --userns=/proc/7/ns/user 7"), "{userns}");
}

/// Goal: callers look for options in the help text.
#[test]
fn help_and_version() {
    let help = read("--help").unwrap();
    for option in [
        "--disable-host-loopback",
        "--mtu",
        "--enable-sandbox",
        "--enable-seccomp",
        "--cidr",
        "--outbound-addr",
        "--enable-ipv6",
        "--netns-type",
        "--api-socket",
    ] {
        assert!(help.contains(&format!(" {option}")), "{option}: {help}");
    }
    assert_eq!(read("-h").unwrap(), help);
    assert!(read("-v --mtu x").unwrap().starts_with("slirp4netns (towpath "));
}

#[test]
fn mistakes() {
    for (given, expected) in [
        ("--nonsense 7 tap0", "unrecognized option '--nonsense'"),
        ("-x 7 tap0", "invalid option -- 'x'"),
        ("7 tap0 -m", "option requires an argument -- 'm'"),
        ("--enable 7 tap0", "option '--enable' is ambiguous; possibilities: '--enable-ipv6' "),
        ("", "the PID or PATH is missing"),
        ("-c 7", "the name of the interface is missing"),
        ("x tap0", "'x' is not a PID"),
        ("0 tap0", "'0' is not a PID"),
        ("--netns-type=tapfd 7", "option --netns-type: 'tapfd' is not 'path' or 'pid'"),
        ("--target-type=bess /x", "option --target-type bess is not supported; for virtual"),
        ("--target-type=x 7 tap0", "option --target-type: 'x' is not 'netns'"),
        ("--outbound-addr=eth0 7 tap0", "option --outbound-addr is not supported; the host's"),
        ("--outbound-addr6=::1 7 tap0", "option --outbound-addr6 is not supported; the host's"),
        ("--macaddress=02:0:0:0:0:1 7 tap0", "option --macaddress needs --configure"),
        ("--mtu=0 7 tap0", "option --mtu: '0' is not a number of bytes from 1 to 65521"),
        ("--mtu=65522 7 tap0", "option --mtu: '65522' is not"),
        ("--mtu=x 7 tap0", "option --mtu: 'x' is not"),
        ("--cidr=10.0.2.0 7 tap0", "option --cidr: '10.0.2.0' is not a network"),
        ("--cidr=10.0.2.0/26 7 tap0", "option --cidr: '10.0.2.0/26' is not a network"),
        ("--cidr=10.0.2.0/0 7 tap0", "option --cidr: '10.0.2.0/0' is not a network"),
        ("--cidr=x/24 7 tap0", "option --cidr: 'x/24' is not a network"),
        ("--cidr=fd00::/64 7 tap0", "option --cidr: 'fd00::/64' is not a network"),
        ("--cidr=10.0.2.1/24 7 tap0", "option --cidr: '10.0.2.1/24' is not the first address"),
    ] {
        assert!(wrong(given).starts_with(expected), "{given}: {}", wrong(given));
    }
}
