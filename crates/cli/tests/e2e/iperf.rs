//! iperf3 over TCP and UDP, in both directions. No speeds are asserted, only that both directions
//! of `--bidir` get a share.

use super::support::{Family, Host, Output, Process, Stats, Test, Towpath, command};

const PORT: &str = "5201";
/// Runs in which both directions may get their share.
const BOTH_WAYS_TRIES: usize = 3;

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for family in Family::BOTH {
        let modes: [(&str, &'static [&'static str]); 3] =
            [("out", &[]), ("in", &["-R"]), ("parallel", &["-P", "8"])];
        for (mode, options) in modes {
            let name = format!("iperf_tcp_{mode}_{}", family.name());
            let body = move |host: &mut Host| one_way(host, family, options);
            tests.push(Test::new(name, &["iperf3"], body).slow_unless(mode != "parallel"));
        }
        for mtu in [576, 1280, 1500, 9000, 65520] {
            if mtu >= 1280 || family == Family::V4 {
                let name = format!("iperf_tcp_bidir_{}_{mtu}", family.name());
                let body = move |host: &mut Host| both_ways(host, family, mtu);
                tests.push(Test::new(name, &["iperf3"], body).slow_unless(mtu == 1500));
            }
        }
        for (mode, options) in [("out", &[][..]), ("in", &["-R"])] {
            let name = format!("iperf_udp_{mode}_{}", family.name());
            let body = move |host: &mut Host| datagrams(host, family, options);
            tests.push(Test::new(name, &["iperf3"], body));
        }
    }
    tests
}

fn iperf(family: Family, mtu: u16, options: &[&str]) -> Output {
    let server = ["-s", "-1", "--forceflush", "-p", PORT, "-B", &family.loopback().to_string()];
    let mut server = Process::start(command("iperf3", server));
    server.wait_for_text("Server listening");
    let gateway = family.gateway().to_string();
    let client = ["iperf3", "-J", "-t", "1", "-p", PORT, "-c", &gateway];
    let client: Vec<&str> = client.iter().chain(options).copied().collect();
    let output = Towpath::with_loopback(["-m", &mtu.to_string()]).run(client);
    assert!(output.status.success(), "{output:?}");
    server.finish().success();
    output
}

/// Returns the number that follows these names, one after another, in JSON.
fn number(json: &str, names: &[&str]) -> f64 {
    let mut rest = json;
    for name in names {
        let quoted = format!("\"{name}\":");
        let at = rest.find(&quoted).unwrap_or_else(|| panic!("no {name} in {json}"));
        rest = rest[at + quoted.len()..].trim_start();
    }
    let end = rest.find([',', '}', '\n']).unwrap_or(rest.len());
    rest[..end].trim().parse().unwrap_or_else(|_| panic!("no number: {}", &rest[..end]))
}

/// Goal: iperf3's TCP works, and no payload byte is copied.
fn one_way(_: &mut Host, family: Family, options: &[&str]) {
    let output = iperf(family, 1500, options);
    Stats::of(&output).assert_uncopied();
    assert!(number(&output.stdout, &["end", "sum_received", "bits_per_second"]) > 1e6);
}

/// Goal: neither direction starves the other.
/// Method: `--bidir`; the slower direction gets at least a fifth of the sum. On a busy machine one
/// direction may get a whole second; a direction that starves does so each time.
fn both_ways(_: &mut Host, family: Family, mtu: u16) {
    let mut rates = Vec::new();
    for _ in 0..BOTH_WAYS_TRIES {
        let output = iperf(family, mtu, &["--bidir"]);
        Stats::of(&output).assert_uncopied();
        let rate = |sum: &str| number(&output.stdout, &["end", sum, "bits_per_second"]);
        let (out, back) = (rate("sum_received"), rate("sum_received_bidir_reverse"));
        if out.min(back) >= 0.2 * (out + back) {
            return;
        }
        rates.push((out, back));
    }
    panic!("out and back, bit/s: {rates:.0?}");
}

/// Goal: at a low rate no datagram is lost.
/// Method: few enough that the kernel's default socket buffer holds all of them, however late a
/// busy machine runs the reader.
fn datagrams(_: &mut Host, family: Family, options: &[&str]) {
    let udp = ["-u", "-b", "500K", "-l", "1200"];
    let options: Vec<&str> = udp.iter().chain(options).copied().collect();
    let output = iperf(family, 1500, &options);
    assert_eq!(number(&output.stdout, &["end", "sum", "lost_packets"]), 0.0);
    assert!(number(&output.stdout, &["end", "sum", "packets"]) > 20.0);
}
