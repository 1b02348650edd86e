//! Every form of a specification, and every error.

use super::*;

fn parse_specs(specs: &[&str]) -> Result<Vec<Publish>, Problem> {
    let specs: Vec<String> = specs.iter().map(|&spec| spec.into()).collect();
    parse(Protocol::Tcp, &specs, &(32768..=60999)).map_err(|error| error.problem)
}

/// Returns (host's port, program's port) of each published port.
fn ports(spec: &str) -> Vec<(u16, u16)> {
    let published = parse_specs(&[spec]).unwrap();
    published.iter().map(|publish| (publish.host_port, publish.program_port)).collect()
}

fn problem(spec: &str) -> Problem {
    parse_specs(&[spec]).unwrap_err()
}

#[test]
fn single_ports_and_lists() {
    assert_eq!(ports("22"), [(22, 22)]);
    assert_eq!(ports("8080:80"), [(8080, 80)]);
    assert_eq!(ports("22,25:2525"), [(22, 22), (25, 2525)]);
    assert_eq!(ports("65535"), [(65535, 65535)]);
    assert_eq!(parse_specs(&["22", "25"]).unwrap().len(), 2);
    assert_eq!(parse_specs(&[]), Ok(vec![]));
}

#[test]
fn ranges() {
    assert_eq!(ports("22-24"), [(22, 22), (23, 23), (24, 24)]);
    assert_eq!(ports("22-23:32-33"), [(22, 32), (23, 33)]);
    assert_eq!(ports("22-80:32-90").len(), 59);
    assert_eq!(ports("5-5"), [(5, 5)]);
    assert_eq!(ports("1-65535").len(), 65535);
}

#[test]
fn addresses_and_interfaces() {
    let one = |spec: &str| parse_specs(&[spec]).unwrap().remove(0);
    assert_eq!(one("192.0.2.1/22").host, Some("192.0.2.1".parse().unwrap()));
    assert_eq!(one("192.0.2.1/22").interface, None);
    let both = one("192.0.2.1%eth0/22");
    assert_eq!(both.host, Some("192.0.2.1".parse().unwrap()));
    assert_eq!(both.interface.as_deref(), Some("eth0"));
    assert_eq!(one("%eth0/22").host, None);
    assert_eq!(one("%eth0/22").interface.as_deref(), Some("eth0"));
    assert_eq!(one("::1/22").host, Some("::1".parse().unwrap()));
    assert_eq!(one("[::1]/22").host, Some("::1".parse().unwrap()));
    let published = parse_specs(&["127.0.0.1/22,23"]).unwrap();
    assert!(
        published.iter().all(|publish| publish.host.is_some()),
        "a prefix holds for the whole list"
    );
    assert_eq!(parse_specs(&["127.0.0.1/22", "::1/22"]).unwrap().len(), 2);
}

#[test]
fn exclusions() {
    assert_eq!(ports("20-24,~22"), [(20, 20), (21, 21), (23, 23), (24, 24)]);
    assert_eq!(ports("~21-23,20-24"), [(20, 20), (24, 24)]);
    assert_eq!(ports("20-22:30-32,~21"), [(20, 30), (22, 32)]);
    let all_but_two = parse_specs(&["~20000-20001"]).unwrap();
    let ephemeral = 60999 - 32768 + 1;
    assert_eq!(all_but_two.len(), 65535 - ephemeral - 2);
    assert!(all_but_two.iter().all(|publish| publish.optional));
    assert!(parse_specs(&["20-24,~22"]).unwrap().iter().all(|publish| !publish.optional));
}

#[test]
fn words() {
    assert_eq!(parse_specs(&["none"]), Ok(vec![]));
    assert_eq!(parse_specs(&["all"]).unwrap().len(), 65535 - (60999 - 32768 + 1));
    let on_one_address = parse_specs(&["127.0.0.1/all"]).unwrap();
    assert!(on_one_address.iter().all(|publish| publish.host.is_some() && publish.optional));
    assert_eq!(parse_specs(&["none", "22"]), Err(Problem::Alone("none")));
    assert_eq!(parse_specs(&["22", "all"]), Err(Problem::Alone("all")));
    assert_eq!(problem("auto"), Problem::Auto);
    assert_eq!(problem("8000-8010,auto"), Problem::AutoAmong);
    assert_eq!(problem("::1/auto"), Problem::AutoAmong);
}

#[test]
fn mistakes() {
    assert_eq!(problem(""), Problem::Empty);
    assert_eq!(problem("22,"), Problem::Empty);
    assert_eq!(problem("22-"), Problem::Empty);
    assert_eq!(problem("127.0.0.1/"), Problem::Empty);
    assert_eq!(problem("~"), Problem::Empty);
    assert_eq!(problem("0"), Problem::Port("0".into()));
    assert_eq!(problem("65536"), Problem::Port("65536".into()));
    assert_eq!(problem("+22"), Problem::Port("+22".into()));
    assert_eq!(problem("http"), Problem::Port("http".into()));
    assert_eq!(problem("22 "), Problem::Port("22 ".into()));
    assert_eq!(problem("24-22"), Problem::Range("24-22".into()));
    assert_eq!(problem("22-24:22-25"), Problem::Lengths("22-24:22-25".into()));
    assert_eq!(problem("22:22-25"), Problem::Lengths("22:22-25".into()));
    assert_eq!(problem("22:23:24"), Problem::Port("23:24".into()));
    assert_eq!(problem("20-30,~25:26"), Problem::ExclusionTarget("~25:26".into()));
    assert_eq!(problem("localhost/22"), Problem::Address("localhost".into()));
    assert_eq!(problem("/22"), Problem::Address(String::new()));
    assert_eq!(problem("1.2.3.4%/22"), Problem::Interface(String::new()));
    assert_eq!(problem("%sixteen-letters-/22"), Problem::Interface("sixteen-letters-".into()));
    assert_eq!(problem("22,22"), Problem::Twice(22));
    assert_eq!(problem("20-24,22:80"), Problem::Twice(22));
    assert_eq!(problem("22,~22"), Problem::NothingLeft);
    assert_eq!(problem("~1-65535"), Problem::NothingLeft);
    assert_eq!(problem("1-65535,1-65535,1-65535"), Problem::Twice(1), "bounded");
}

#[test]
fn messages_name_the_specification() {
    let error = parse(Protocol::Udp, &["24-22".into()], &(1..=1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "port specification '24-22': '24-22' is not a range of ports; the first must not be above \
         the last"
    );
}

fn parse_joined_specs(specs: &[&str]) -> Result<Vec<(u16, u16)>, Problem> {
    let specs: Vec<String> = specs.iter().map(|&spec| spec.into()).collect();
    let ports = parse_joined(&specs).map_err(|error| error.problem)?;
    Ok(ports.iter().map(|port| (port.inside, port.host)).collect())
}

#[test]
fn joined_ports() {
    let joined = |specs: &[&str]| parse_joined_specs(specs).unwrap();
    assert_eq!(joined(&["5432"]), [(5432, 5432)]);
    assert_eq!(joined(&["8080:80", "22,25"]), [(8080, 80), (22, 22), (25, 25)]);
    assert_eq!(joined(&["20-22:30-32,~21"]), [(20, 30), (22, 32)]);
    assert_eq!(
        joined(&["1:80,2:80"]),
        [(1, 80), (2, 80)],
        "two joined ports may lead to one host port"
    );
    assert_eq!(joined(&["none"]), []);
    assert_eq!(joined(&[]), []);
}

#[test]
fn mistakes_with_joined_ports() {
    let problem = |spec: &str| parse_joined_specs(&[spec]).unwrap_err();
    assert_eq!(problem(""), Problem::Empty);
    assert_eq!(problem("22,"), Problem::Empty);
    assert_eq!(problem("0"), Problem::Port("0".into()));
    assert_eq!(problem("22:0"), Problem::Port("0".into()));
    assert_eq!(problem("65536"), Problem::Port("65536".into()));
    assert_eq!(problem("http"), Problem::Port("http".into()));
    assert_eq!(problem("24-22"), Problem::Range("24-22".into()));
    assert_eq!(problem("22-24:22-25"), Problem::Lengths("22-24:22-25".into()));
    assert_eq!(problem("20-30,~25:26"), Problem::ExclusionTarget("~25:26".into()));
    assert_eq!(problem("auto"), Problem::Auto);
    assert_eq!(problem("22,~22"), Problem::NothingLeft);
    assert_eq!(problem("22:80,22:81"), Problem::Twice(22));
    assert_eq!(problem("1-65535,1-65535"), Problem::Twice(1), "bounded");
    for all in ["all", "~22", "~1-1023,~5000"] {
        assert_eq!(problem(all), Problem::AllJoined(all.into()));
    }
    for elsewhere in ["127.0.0.1/22", "%lo/22", "127.0.0.1%lo/22", "/22", "[::1]/22", "22%lo"] {
        assert_eq!(problem(elsewhere), Problem::LoopbackOnly(elsewhere.into()));
    }
    assert_eq!(parse_joined_specs(&["22", "22:80"]), Err(Problem::Twice(22)));
    assert_eq!(parse_joined_specs(&["none", "22"]), Err(Problem::Alone("none")));
    assert_eq!(parse_joined_specs(&["all", "22"]), Err(Problem::AllJoined("all".into())));
}

/// Goal: the form of Docker is understood where it is unambiguous.
#[test]
fn addresses_before_a_colon() {
    for (spec, same) in [
        ("127.0.0.1:8080:80", "127.0.0.1/8080:80"),
        ("127.0.0.1:2000-2009:3000-3009", "127.0.0.1/2000-2009:3000-3009"),
        ("[::1]:8080:80", "::1/8080:80"),
    ] {
        assert_eq!(parse_specs(&[spec]), parse_specs(&[same]), "{spec}");
        assert_eq!(parse_specs(&[same]).unwrap()[0].host.map(|ip| ip.is_loopback()), Some(true));
    }
    for (wrong, meant) in [
        ("::1:8080:80", "::1/8080:80"),
        ("2001:db8::1:8080:80", "2001:db8::1/8080:80"),
        ("[127.0.0.1]:8080:80", "127.0.0.1/8080:80"),
    ] {
        assert_eq!(problem(wrong), Problem::AddressByColon(meant.into()), "{wrong}");
    }
    assert_eq!(problem("127.0.0.1::80"), Problem::Empty);
    assert_eq!(problem("127.0.0.1:8080:"), Problem::Empty);
    assert_eq!(problem("127.0.0.1:8080:80/x"), Problem::Address("127.0.0.1:8080:80".into()));
}

/// Goal: a port leads to another address inside, in the form of pasta.
#[test]
fn addresses_of_targets() {
    let shown = |spec: &str| {
        let published = parse_specs(&[spec]).unwrap_or_else(|problem| panic!("{spec}: {problem}"));
        let one = |publish: &Publish| {
            format!("{} {}:{}", publish.host_port(), publish.target, publish.program_port)
        };
        published.iter().map(one).collect::<Vec<_>>()
    };
    for (spec, expected) in [
        ("5000:192.0.2.5/6000", "TCP 5000 192.0.2.5:6000"),
        ("5000:192.0.2.5", "TCP 5000 192.0.2.5:5000"),
        ("0.0.0.0/5000:192.0.2.5/6000", "TCP 0.0.0.0/5000 192.0.2.5:6000"),
        ("%eth0/5000:192.0.2.5/6000", "TCP %eth0/5000 192.0.2.5:6000"),
        ("::/5000:2001:db8::5/6000", "TCP ::/5000 2001:db8::5:6000"),
        ("[::]/5000:[2001:db8::5]/6000", "TCP ::/5000 2001:db8::5:6000"),
        ("5000:[2001:db8::5]/6000", "TCP 5000 2001:db8::5:6000"),
        ("5000:[2001:db8::5]", "TCP 5000 2001:db8::5:5000"),
        // Over TCP, towpath can change the IP version.
        ("127.0.0.1/5000:[2001:db8::5]", "TCP 127.0.0.1/5000 2001:db8::5:5000"),
        ("80:1::2/81", "TCP 80:1::2/81 the program:81"),
    ] {
        assert_eq!(shown(spec), [expected], "{spec}");
    }
    let several = ["TCP 22 the program:22", "TCP 80 10.0.0.1:81", "TCP 90 10.0.0.2:90"];
    assert_eq!(shown("22,80:10.0.0.1/81,90:10.0.0.2"), several);
    let range = ["TCP 80 10.0.0.1:90", "TCP 82 10.0.0.1:92"];
    assert_eq!(shown("80-82:10.0.0.1/90-92,~81"), range);
    let all = parse_specs(&["127.0.0.6/all:192.0.2.6"]).unwrap();
    assert_eq!(all.len(), parse_specs(&["all"]).unwrap().len());
    let target = Target::Address("192.0.2.6".parse().unwrap());
    assert!(all.iter().all(|one| one.target == target && one.optional));
    assert_eq!(parse_specs(&["all:192.0.2.6"]).unwrap()[0].target, target);
}

#[test]
fn mistakes_with_addresses_of_targets() {
    for target in ["0.0.0.0", "224.0.0.1", "127.0.0.1", "[::1]", "ff02::1"] {
        let expected = Problem::Target(target.into());
        assert_eq!(problem(&format!("0.0.0.0/80:{target}/80")), expected, "{target}");
    }
    assert_eq!(problem("0.0.0.0/80:x/80"), Problem::Target("x".into()));
    assert_eq!(problem("all:x"), Problem::Target("x".into()));
    assert_eq!(problem("all:"), Problem::Target(String::new()));
    assert_eq!(problem("80:10.0.0.1/"), Problem::Empty);
    assert_eq!(problem("80:10.0.0.1/81-82"), Problem::Lengths("80:10.0.0.1/81-82".into()));
    assert_eq!(problem("~80:10.0.0.1"), Problem::ExclusionTarget("~80:10.0.0.1".into()));
    let udp = |spec: &str| parse(Protocol::Udp, &[spec.into()], &(1..=1)).map(|all| all.len());
    assert_eq!(udp("53:10.0.0.1"), Ok(1));
    let error = udp("::/53:10.0.0.1").unwrap_err();
    let expected = "datagrams at :: cannot reach 10.0.0.1: the IP versions differ";
    assert!(error.to_string().ends_with(expected), "{error}");
    for spec in ["22:10.0.0.1", "22:[::5]"] {
        assert_eq!(parse_joined_specs(&[spec]), Err(Problem::LoopbackOnly(spec.into())), "{spec}");
    }
}
