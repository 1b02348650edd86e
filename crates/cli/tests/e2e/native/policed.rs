//! `towpath run --native` with a policy: which connections are native, that a hostile program
//! reaches nothing that the policy forbids, and that a new policy ends native connections.

use std::ffi::OsString;
use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketType,
    sendmsg, shutdown, socket,
};
use serde_json::Value;

use super::super::support::{
    Host, OUTSIDE_V4, Process, Server, Stats, TOWPATH, Test, Towpath, command, echo, retry,
};
use super::{asked, built};

pub(super) fn tests() -> Vec<Test> {
    vec![
        Test::new("native_policed", &["gcc", "ip"], policed),
        Test::new("native_withdrawn", &["python3"], withdrawn),
    ]
}

/// An address outside that no policy here allows.
const FORBIDDEN: &str = "192.0.2.66";
const PORT: u16 = 5432;
/// Another port of the host that policies here allow, with a bound on bytes.
const COUNTED: u16 = 5433;

/// Sees whatever arrives at the forbidden address.
struct Witness {
    clients: Arc<Mutex<Vec<SocketAddr>>>,
    listener: Arc<TcpListener>,
    datagrams: UdpSocket,
    thread: thread::JoinHandle<()>,
}

impl Witness {
    fn start(host: &mut Host) -> Self {
        let outside = host.outside();
        let at = format!("{FORBIDDEN}/24");
        let add = outside.command("ip", ["address", "add", &at, "dev", "in0"]);
        Process::start(add).finish().success();
        let (listener, datagrams) = outside.run(|| {
            let listener = TcpListener::bind((FORBIDDEN, PORT)).expect("a port");
            (Arc::new(listener), UdpSocket::bind((FORBIDDEN, PORT)).expect("a port"))
        });
        datagrams.set_nonblocking(true).expect("a socket");
        let clients = Arc::new(Mutex::new(Vec::new()));
        let (accepting, noting) = (listener.clone(), clients.clone());
        let thread = thread::spawn(move || {
            while let Ok((_, client)) = accepting.accept() {
                noting.lock().expect("no panic").push(client);
            }
        });
        Self { clients, listener, datagrams, thread }
    }

    /// Returns the clients that came, and the datagrams. First it is seen that it sees those of the
    /// host, which are not among them.
    fn finish(self) -> (Vec<SocketAddr>, Vec<Vec<u8>>) {
        let own = TcpStream::connect((FORBIDDEN, PORT)).expect("a listener");
        let own = own.local_addr().expect("an address");
        // Those of the program came before, and are accepted first.
        let mut clients = retry("a connection", || {
            let clients = self.clients.lock().expect("no panic").clone();
            clients.contains(&own).then_some(clients)
        });
        clients.retain(|client| *client != own);
        let sender = UdpSocket::bind("0.0.0.0:0").expect("a port");
        let mut came = Vec::new();
        // On a busy machine the kernel may drop one.
        retry("a datagram", || {
            sender.send_to(b"own", (FORBIDDEN, PORT)).expect("a route");
            let mut buffer = [0; 64];
            while let Ok(count) = self.datagrams.recv(&mut buffer) {
                came.push(buffer[..count].to_vec());
            }
            came.iter().any(|datagram| datagram == b"own").then_some(())
        });
        came.retain(|datagram| datagram != b"own");
        shutdown(&self.listener, Shutdown::Both).expect("a listener");
        self.thread.join().expect("no panic");
        (clients, came)
    }
}

/// Starts echo servers outside that may be reached.
fn servers(host: &mut Host) -> Vec<Server> {
    let address: IpAddr = OUTSIDE_V4.parse().expect("an address");
    let start = |port| Server::start_at(SocketAddr::new(address, port), echo);
    host.outside().run(|| [PORT, COUNTED].map(start).into())
}

/// Allows the servers, the second one with a quota.
fn policy(rule: &str) -> String {
    format!(
        "[egress]\n\
         [[egress.rule]]\nid = 'plain'\naction = 'allow'\nto = '{OUTSIDE_V4}'\n\
         ports = ['tcp/{PORT}', 'udp/{PORT}']\n{rule}\n\
         [[egress.rule]]\nid = 'counted'\naction = 'allow'\nto = '{OUTSIDE_V4}'\n\
         ports = 'tcp/{COUNTED}'\nquota = '1G'\n"
    )
}

/// Gives a TCP socket of the host to the first client.
fn give_socket(to: &UnixListener) {
    let (channel, _): (UnixStream, _) = to.accept().expect("a client");
    let given = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let sockets = [given.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&sockets)));
    let part = [IoSlice::new(b"x")];
    sendmsg(&channel, &part, &mut control, SendFlags::empty()).expect("a reader");
}

fn records(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("the audit");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Goal: whatever a hostile program does, nothing reaches the address that the policy forbids, and
/// each denial is seen at once; what is allowed works, natively where the address decides.
fn policed(host: &mut Host) {
    let _servers = servers(host);
    let witness = Witness::start(host);
    let file = host.write("policy.toml", policy(""));
    let audit = host.file("audit.jsonl");
    let program = built(host, "policed", include_str!("policed.c"));
    let path = host.file("given");
    let listener = UnixListener::bind(&path).expect("a folder");
    let giving = thread::spawn(move || give_socket(&listener));
    let options = ["--native", "--map-root", "--egress"].map(OsString::from).into_iter();
    let options = options.chain([file.into(), "--audit".into(), audit.clone().into()]);
    let words = [OUTSIDE_V4, FORBIDDEN, &PORT.to_string()].map(OsString::from);
    let words = std::iter::once(program.into()).chain(words).chain([path.into()]);
    let output = Towpath::new(options).run(words);
    assert_eq!(output.stdout, "tried\n", "{}", output.stderr);
    assert!(output.status.success(), "{output:?}");
    giving.join().expect("no panic");
    assert_eq!(witness.finish(), (Vec::new(), Vec::new()));
    let stats = Stats::of(&output);
    assert!(stats.number("native", "in") > 0, "{}", output.stderr);
    let records = records(&audit);
    let native = |verdict: &str| {
        let is_one = |record: &&Value| record["verdict"] == verdict && record["path"] == "native";
        records.iter().filter(is_one).collect::<Vec<_>>()
    };
    let [begun, ended, denied] = ["allow", "end", "deny"].map(native);
    assert_eq!(begun.len(), ended.len(), "each native connection has an end");
    assert!(begun.iter().all(|record| record["address"] == OUTSIDE_V4));
    assert!(denied.iter().any(|record| record["address"] == FORBIDDEN));
    // An echoed word, and perhaps the FIN.
    assert!(ended.iter().any(|end| end["bytes_out"] == 8), "{ended:?}");
}

/// Opens native connections and one of the interface, and prints how each of them ended.
const SCRIPT: &str = "\
import errno, socket, sys
def connect(port):
    try:
        stream = socket.create_connection((sys.argv[1], port))
        stream.sendall(b'word')
        return stream, stream.recv(4, socket.MSG_WAITALL)
    except OSError as error:
        return None, errno.errorcode[error.errno]
def wait_for_end(stream):
    try:
        return stream.recv(1)
    except (BrokenPipeError, ConnectionResetError):
        return 'ended'
plain, counted = int(sys.argv[2]), int(sys.argv[3])
first, word = connect(plain)
second, other = connect(counted)
third, _ = connect(plain)
third.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'out0')
print(word, other, connect(plain)[1], flush=True)
print(wait_for_end(first), wait_for_end(third), connect(plain)[1], flush=True)
second.sendall(b'more')
print(second.recv(4, socket.MSG_WAITALL), flush=True)
";

/// Goal: an address rule makes a connection native, a quota keeps it to the interface, and a bound
/// of flows holds. A new policy ends the native connections that it denies, also one that the
/// program has bound to an interface of the host, and no other.
fn withdrawn(host: &mut Host) {
    let _servers = servers(host);
    let first = host.write("first.toml", policy("flows = 2"));
    let second = policy("").replacen("'allow'", "'deny'", 1);
    let second = host.write("second.toml", second);
    let script = host.write("script.py", SCRIPT);
    let audit = host.file("audit.jsonl");
    let options = ["--native".into(), "--egress".into(), first.into_os_string()];
    let options = options.into_iter().chain(["--audit".into(), audit.clone().into()]);
    let words = [OUTSIDE_V4, &PORT.to_string(), &COUNTED.to_string()].map(OsString::from);
    let words = ["python3".into(), script.into_os_string()].into_iter().chain(words);
    let towpath = Towpath::new(options).found_by(host);
    let mut towpath = Process::start_held(towpath.command(words));
    towpath.wait_for_text("b'word' b'word' EHOSTUNREACH");
    let pid = towpath.pid().to_string();
    let paths = retry("a list of flows", || {
        let output = asked(host, &["flows", "--json", &pid]);
        output.status.success().then_some(output.stdout)
    });
    let flows = paths.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut paths: Vec<_> =
        flows.map(|flow| (flow["path"].clone(), flow["peer"].clone())).collect();
    paths.sort_by_key(|(path, _)| path.to_string());
    let expected = [("interface", COUNTED), ("native", PORT), ("native", PORT)];
    let expected =
        expected.map(|(path, port)| (path.into(), format!("{OUTSIDE_V4}:{port}").into()));
    assert_eq!(paths, expected);
    let mut set = command(TOWPATH, ["policy", "set", &pid]);
    set.arg(second).env("XDG_RUNTIME_DIR", host.file(""));
    Process::start(set).finish().success();
    let output = towpath.finish();
    let expected = "b'word' b'word' EHOSTUNREACH\n\
                    ended ended EHOSTUNREACH\nb'more'\n";
    assert_eq!(output.stdout, expected, "{}", output.stderr);
    for line in [
        "refused; policy 2,",
        "native ended      2 on request or by a new policy",
        "native denied     2 by the policy",
        "not native        policy 1",
    ] {
        assert!(output.stderr.contains(line), "{line}: {}", output.stderr);
    }
    let records = records(&audit);
    let native = records.iter().filter(|record| record["path"] == "native");
    let told: Vec<_> = native.map(|record| (&record["verdict"], &record["bytes_out"])).collect();
    let [allow, deny, end] = ["allow", "deny", "end"].map(Value::from);
    let (unknown, zero, four) = (Value::Null, Value::from(0), Value::from(4));
    let count = |one| told.iter().filter(|other| **other == one).count();
    assert_eq!(count((&allow, &unknown)), 2, "{records:?}");
    // The bound denies one when it begins, and the new policy another; it withdraws two.
    assert_eq!([count((&deny, &unknown)), count((&deny, &zero))], [2, 2], "{records:?}");
    // The kernel does not tell the bytes of the one that is bound.
    assert_eq!([count((&end, &four)), count((&end, &unknown))], [1, 1], "{records:?}");
    assert_eq!(told.len(), 8, "{records:?}");
}
