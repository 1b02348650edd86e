//! Defaults as documented, and the bounds of each field from both sides.

use super::*;

fn checked(change: impl FnOnce(&mut Config)) -> Result<(Config, Option<Notice>), ConfigError> {
    let mut config = Config::default();
    change(&mut config);
    let notice = config.check()?;
    Ok((config, notice))
}

fn error(change: impl FnOnce(&mut Config)) -> ConfigError {
    checked(change).unwrap_err()
}

#[test]
fn defaults_are_the_documented_ones() {
    let (config, notice) = checked(|_| {}).unwrap();
    assert_eq!(notice, None);
    let ipv4 = config.ipv4.unwrap();
    assert_eq!(ipv4.address, Ipv4Addr::new(10, 0, 2, 15));
    assert_eq!(ipv4.prefix_len, 24);
    assert_eq!(ipv4.gateway, Ipv4Addr::new(10, 0, 2, 2));
    assert_eq!(ipv4.dns, Some(Ipv4Addr::new(10, 0, 2, 3)));
    let ipv6 = config.ipv6.unwrap();
    assert_eq!(ipv6.address.to_string(), "fd74:6f77:7061:7468::15");
    assert_eq!(ipv6.prefix_len, 64);
    assert_eq!(ipv6.gateway.to_string(), "fd74:6f77:7061:7468::2");
    assert_eq!(ipv6.dns.unwrap().to_string(), "fd74:6f77:7061:7468::3");
    assert_eq!(config.mtu, 1500);
    assert_eq!(config.memory_bytes, 256 * 1024 * 1024);
    assert_eq!(config.dns(), Some("10.0.2.3".parse().unwrap()));
}

#[test]
fn mtu_bounds() {
    assert_eq!(error(|config| config.mtu = 575), ConfigError::Mtu(575));
    assert_eq!(error(|config| config.mtu = 65521), ConfigError::Mtu(65521));
    assert!(checked(|config| config.mtu = 65520).unwrap().0.ipv6.is_some());
    assert!(checked(|config| config.mtu = 1280).unwrap().0.ipv6.is_some());
    let (config, notice) = checked(|config| config.mtu = 1279).unwrap();
    assert_eq!((config.ipv6, notice), (None, Some(Notice::Ipv6Off(1279))));
    let ipv6_only = |config: &mut Config| (config.mtu, config.ipv4) = (1279, None);
    assert_eq!(error(ipv6_only), ConfigError::MtuIpv6(1279));
}

#[test]
fn one_family_is_needed() {
    let neither = |config: &mut Config| (config.ipv4, config.ipv6) = (None, None);
    assert_eq!(error(neither), ConfigError::NoFamily);
    let (config, _) = checked(|config| config.ipv4 = None).unwrap();
    assert_eq!(config.dns(), Some("fd74:6f77:7061:7468::3".parse().unwrap()));
}

#[test]
fn host_loopback_addresses() {
    let with = |text: &str| {
        let address = text.parse().unwrap();
        checked(move |config| config.host_loopback = vec![address]).map(drop)
    };
    assert_eq!(with("10.0.2.2"), Ok(()));
    assert_eq!(with("192.0.2.7"), Ok(()));
    assert_eq!(with("fd74:6f77:7061:7468::2"), Ok(()));
    for bad in ["127.0.0.1", "::1", "0.0.0.0", "224.0.0.1", "10.0.2.15", "10.0.2.3"] {
        let error = with(bad).unwrap_err();
        assert!(matches!(error, ConfigError::HostLoopback(..)), "{bad}: {error}");
    }
    let off = |config: &mut Config| {
        (config.ipv6, config.host_loopback) = (None, vec!["fd00::1".parse().unwrap()]);
    };
    assert!(matches!(error(off), ConfigError::HostLoopback(..)));
}

#[test]
fn other_bounds() {
    let name = |name: &str| error(|config| config.interface = name.into());
    assert!(matches!(name(""), ConfigError::Interface(_)));
    assert!(matches!(name("a/b"), ConfigError::Interface(_)));
    assert!(matches!(name("sixteen-letters-"), ConfigError::Interface(_)));
    assert!(matches!(error(|config| config.memory_bytes = 1), ConfigError::Memory(1)));
    assert!(matches!(error(|config| config.flows_max = 0), ConfigError::Flows(0)));
    let many = vec!["192.0.2.1".parse().unwrap(); RESOLVERS_MAX + 1];
    assert!(matches!(
        error(|config| config.resolvers = Some(many)),
        ConfigError::TooMany { count: 9, max: 8, .. }
    ));
    let any = vec!["0.0.0.0".parse().unwrap()];
    assert!(matches!(error(|config| config.resolvers = Some(any)), ConfigError::Resolver(_)));
}

#[test]
fn queue_holds_full_windows_of_several_flows() {
    assert_eq!(tx_queue_len(1500), 22_369);
    assert_eq!(tx_queue_len(576), 58_254);
    assert_eq!(tx_queue_len(9000), 3728);
    assert_eq!(tx_queue_len(65520), 1000);
}

#[test]
fn subnets() {
    let config = |text: &str| text.parse::<Subnet4>().unwrap().config();
    assert_eq!(config("192.168.7.0/24").address, Ipv4Addr::new(192, 168, 7, 15));
    assert_eq!(config("192.168.7.8/29").gateway, Ipv4Addr::new(192, 168, 7, 10));
    assert_eq!(config("192.168.7.8/29").address, Ipv4Addr::new(192, 168, 7, 12));
    assert_eq!(
        config("192.168.7.16/28").address,
        Ipv4Addr::new(192, 168, 7, 20),
        "31 is broadcast"
    );
    assert_eq!(config("192.168.7.32/27").address, Ipv4Addr::new(192, 168, 7, 47));
    assert_eq!(config("10.0.0.0/8").dns, Some(Ipv4Addr::new(10, 0, 0, 3)));
    let config = |text: &str| text.parse::<Subnet6>().unwrap().config();
    assert_eq!(config("fd00:1:2:3::/64").address.to_string(), "fd00:1:2:3::15");
    assert_eq!(config("fd00::100/120").gateway.to_string(), "fd00::102");
}

#[test]
fn impossible_subnets() {
    let error = |text: &str| text.parse::<Subnet4>().unwrap_err();
    assert!(matches!(error("10.0.2.0"), SubnetError::Form(_)));
    assert!(matches!(error("fd00::/64"), SubnetError::Form(_)));
    assert!(matches!(error("10.0.2.0/30"), SubnetError::Length { len: 30, .. }));
    assert!(matches!(error("10.0.0.0/7"), SubnetError::Length { len: 7, .. }));
    assert_eq!(error("10.0.2.9/24"), SubnetError::HostBits("10.0.2.0/24".into()));
    for reserved in ["127.0.0.0/8", "0.0.0.0/8", "224.0.0.0/24", "169.254.0.0/16"] {
        assert!(matches!(error(reserved), SubnetError::Reserved(_)), "{reserved}");
    }
    let error = |text: &str| text.parse::<Subnet6>().unwrap_err();
    assert!(matches!(error("fd00::"), SubnetError::Form(_)));
    assert!(matches!(error("fd00::/63"), SubnetError::Length { len: 63, .. }));
    assert!(matches!(error("fd00::/121"), SubnetError::Length { len: 121, .. }));
    assert!(matches!(error("fd00::1/64"), SubnetError::HostBits(_)));
    for reserved in ["::/64", "ff02::/64", "fe80::/64"] {
        assert!(matches!(error(reserved), SubnetError::Reserved(_)), "{reserved}");
    }
}

/// Goal: further addresses are unicast addresses that mean nothing else inside, and few.
#[test]
fn further_addresses() {
    let with = |addresses: &[&str]| {
        let further = addresses.iter().map(|text| {
            let address: IpAddr = text.parse().expect("an address");
            ProgramAddress { address, prefix_len: 24 }
        });
        let host_loopback = vec!["10.9.9.9".parse().expect("an address")];
        Config { further_addresses: further.collect(), host_loopback, ..Config::default() }
    };
    let good = ["10.0.2.16", "192.0.2.1", "2001:db8::1"];
    assert_eq!(with(&good).check(), Ok(None));
    for wrong in [
        "127.0.0.2",
        "::1",
        "0.0.0.0",
        "224.0.0.1",
        "10.0.2.2",
        "10.0.2.3",
        "10.0.2.15",
        "10.9.9.9",
        "fd74:6f77:7061:7468::2",
    ] {
        let checked = with(&[wrong]).check();
        assert!(matches!(checked, Err(ConfigError::Further(..))), "{wrong}: {checked:?}");
    }
    let twice = with(&["192.0.2.1", "192.0.2.1"]).check();
    assert!(matches!(twice, Err(ConfigError::Further(..))), "{twice:?}");
    let v4_only = Config { ipv6: None, ..with(&good) }.check();
    assert!(matches!(v4_only, Err(ConfigError::Further(..))), "{v4_only:?}");
    let mut small = Config { mtu: 1000, ..with(&good) };
    assert_eq!(small.check(), Ok(Some(Notice::Ipv6Off(1000))));
    assert_eq!(small.further_addresses.len(), 2, "those of IPv6 go with it");
    let many: Vec<String> = (1..=17).map(|last| format!("192.0.2.{last}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(with(&many[..16]).check(), Ok(None));
    assert!(matches!(with(&many).check(), Err(ConfigError::TooMany { count: 17, max: 16, .. })));
    let interface = with(&good).interface();
    assert_eq!(interface.further[1], (IpAddr::from([192, 0, 2, 1]), 24));
}

/// Goal: `auto` takes no more workers than there are processors, than it may, and than there is
/// memory for.
#[test]
fn workers_by_processors_and_memory() {
    let of = |mib: usize, processors, most| shares::auto(mib << 20, processors, most);
    assert_eq!([1, 2, 3, 64].map(|processors| of(256, processors, 2)), [1, 2, 2, 2]);
    assert_eq!([16, 47, 48, 256].map(|mib| of(mib, 8, 2)), [1, 1, 2, 2]);
    for mib in 16..200 {
        let workers = of(mib, 64, WORKERS_AUTO_MAX);
        assert!(shares::check(mib << 20, workers).is_ok(), "{workers} in {mib} MiB");
    }
}
