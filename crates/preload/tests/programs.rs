//! Unmodified programs with the library preloaded, as clients and servers of the kernel's sockets.
//!
//! Method: each test is a shell script in a network namespace of its own. The kernel has 192.0.2.1
//! on the TAP interface `tap0`; a preloaded program attaches to the other end and has 192.0.2.2.
//! `ours PROGRAM` runs a program with the library, any other command runs without it. Root, a TAP
//! device and the programs are needed; a test without them says so.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Exit code of a script that cannot run on this machine.
const SKIPPED: i32 = 77;

/// The beginning of each script. Ends all processes that the script has started, at its end.
const BEGIN: &str = r#"
for program in ip timeout $PROGRAMS; do
    command -v "$program" >/dev/null || { echo "there is no $program"; exit 77; }
done
ip tuntap add dev tap0 mode tap vnet_hdr || { echo 'there is no TAP device'; exit 77; }
ip link set lo up
sysctl -q -w net.ipv6.conf.tap0.accept_dad=0 2>/dev/null || true
ip address add 192.0.2.1/24 dev tap0
ip address add 2001:db8::1/64 dev tap0
ip link set tap0 up
started=
cleanup() {
    for pid in $started; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$work"
}
work=$(mktemp -d)
trap cleanup EXIT
cd "$work"
link=tap:tap0,address=192.0.2.2/24,address=2001:db8::2/64,gateway=192.0.2.1
ours() { env LD_PRELOAD="$LIBRARY" TOWPATH_PRELOAD="$link" "$@"; }
# Replaces a subshell by a program with the library, so that its process ID is the program's.
become_ours() { export LD_PRELOAD="$LIBRARY" TOWPATH_PRELOAD="$link"; exec "$@"; }
until_works() {
    for try in $(seq 100); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    echo "it never worked: $*" >&2
    return 1
}
"#;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library, which was built with this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("path of this program");
    let library = own.parent().expect("folder").join("libtowpath_preload.so");
    assert!(library.exists(), "{} was built with this test", library.display());
    library
}

/// Runs a script in a network namespace.
fn run(programs: &str, script: &str) -> Output {
    Command::new("timeout")
        .args(["--kill-after=5", "120", "unshare", "--net", "sh", "-euc"])
        .arg(format!("{BEGIN}{script}"))
        .env("PROGRAMS", programs)
        .env("LIBRARY", library())
        .env("TESTS", package().join("tests"))
        .output()
        .expect("timeout and unshare are in every system")
}

/// Runs a script that must succeed, unless the machine lacks what it needs.
fn check(programs: &str, script: &str) {
    let ran = run(programs, script);
    let (stdout, stderr) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    if ran.status.code() == Some(SKIPPED) || stderr.contains("unshare failed") {
        println!("skipped: {}{}", stdout.trim(), stderr.trim());
        return;
    }
    assert!(ran.status.success(), "{}\n{stdout}\n{stderr}", ran.status);
}

/// Compiles a C program of the tests under a name.
fn compile(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let compiled = Command::new("cc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(package().join("tests").join(source))
        .status();
    assert!(compiled.expect("a C compiler").success());
    program
}

/// Goal: descriptors of both kinds work in all calls; duplicates, forks, threads, signals and wrong
/// arguments do what they do in the kernel. Also as distributions compile programs.
#[test]
fn a_c_program_does_odd_things() {
    for (name, flags) in [("odd", &[][..]), ("odd-fortified", &["-D_FORTIFY_SOURCE=2"])] {
        let program = compile("odd.c", name, flags);
        check("ls grep", &format!("test \"$(ours {})\" = ok", program.display()));
    }
}

/// Goal: a call that a signal handler makes during another one, or the thread after the handler has
/// left that one, never hangs: it fails if the interrupted call had the lock. The message is
/// printed once, and the program ends.
#[test]
fn handlers_interrupt_calls() {
    let program = compile("leaving.c", "leaving", &[]);
    check(
        "timeout grep",
        &format!(
            r#"
            for way in waiting locked; do
                test "$(ours timeout -s KILL 60 {} $way 2>message)" = ok ||
                    {{ cat message >&2; exit 1; }}
            done
            test "$(grep -c '^towpath: .* EDEADLK' message)" = 1
            "#,
            program.display()
        ),
    );
}

/// Goal: curl downloads from a server of the kernel, over IPv4 and IPv6, and reports an unused
/// address and a closed port.
#[test]
fn curl_is_a_client() {
    check(
        "curl python3",
        r"
        head -c 8000000 /dev/urandom >data
        python3 -m http.server --bind :: 8000 >/dev/null 2>&1 &
        started=$!
        until_works curl -s http://192.0.2.1:8000/
        for name in 192.0.2.1 '[2001:db8::1]'; do
            ours curl -sS -g -o got http://$name:8000/data
            cmp data got
        done
        # Several connections at a time.
        ours curl -sS --parallel --parallel-immediate -o a -o b -o c -o d \
            http://192.0.2.1:8000/data http://192.0.2.1:8000/data \
            http://192.0.2.1:8000/data http://192.0.2.1:8000/data
        for got in a b c d; do cmp data $got; done
        code=0; ours curl -sS http://192.0.2.1:8001/ 2>refused || code=$?
        test $code = 7
        code=0; ours curl -sS --connect-timeout 1 http://192.0.2.9/ || code=$?
        test $code = 28 -o $code = 7
        ",
    );
}

/// Goal: Python's HTTP server, which starts a thread for each connection, serves the kernel's
/// clients, and its client downloads.
#[test]
fn python_is_server_and_client() {
    check(
        "curl python3",
        r#"
        head -c 3000000 /dev/urandom >data
        (become_ours python3 -m http.server --bind 192.0.2.2 8000 >/dev/null 2>&1) &
        started=$!
        until_works curl -s http://192.0.2.2:8000/
        curl -sS --parallel -o a -o b -o c http://192.0.2.2:8000/data http://192.0.2.2:8000/data \
            http://192.0.2.2:8000/data
        for got in a b c; do cmp data $got; done
        kill $started; wait $started || true
        python3 -m http.server --bind 192.0.2.1 8000 >/dev/null 2>&1 &
        started=$!
        until_works curl -s http://192.0.2.1:8000/
        ours python3 -c 'if True:
            import urllib.request
            with urllib.request.urlopen("http://192.0.2.1:8000/data") as got:
                assert got.read() == open("data", "rb").read()'
        "#,
    );
}

/// Goal: a program that asks to lend a few bytes, for which that costs more than a copy, has its
/// notice when the call returns; the bytes arrive.
#[test]
fn small_lending_sends_are_copied() {
    check(
        "curl python3",
        r#"
        echo served >data
        python3 -m http.server --bind 192.0.2.1 8000 >/dev/null 2>&1 &
        started=$!
        until_works curl -s http://192.0.2.1:8000/
        ours python3 -c 'if True:
            import socket, struct
            SO_ZEROCOPY, MSG_ZEROCOPY, COPIED, ZEROCOPY = 60, 0x4000000, 1, 5
            s = socket.create_connection(("192.0.2.1", 8000))
            s.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
            for number in range(3):
                part = [b"GET /data HTTP/1.0\r\n", b"Host: x\r\n", b"\r\n"][number]
                assert s.send(part, MSG_ZEROCOPY) == len(part)
                control = s.recvmsg(0, 128, socket.MSG_ERRQUEUE)[1]
                notice = struct.unpack("=IBBBBII", control[0][2][:16])
                assert notice == (0, ZEROCOPY, 0, COPIED, 0, number, number), notice
            got = b""
            while part := s.recv(4096): got += part
            assert got.endswith(b"served\n"), got'
        "#,
    );
}

/// Goal: loops of Python over `select`, `poll`, `epoll` and asyncio work, as servers and as
/// clients, and an exception of a signal ends a call that waits.
#[test]
fn python_has_loops() {
    check(
        "python3",
        r#"
        for loop in select poll epoll asyncio; do
            (become_ours python3 "$TESTS/loops.py" server $loop 192.0.2.2) &
            started=$!
            until_works python3 "$TESTS/loops.py" client threads 192.0.2.2
            kill $started; wait $started || true
            python3 "$TESTS/loops.py" server $loop 192.0.2.1 &
            started=$!
            until_works python3 "$TESTS/loops.py" client threads 192.0.2.1
            ours python3 "$TESTS/loops.py" client threads 192.0.2.1
            ours python3 "$TESTS/loops.py" client asyncio 192.0.2.1
            kill $started; wait $started || true
        done
        ours timeout 20 python3 "$TESTS/loops.py" interrupt none 192.0.2.2
        "#,
    );
}

/// Goal: iperf3 transfers in both directions, over TCP and UDP, as a server and as a client.
#[test]
fn iperf_transfers() {
    check(
        "iperf3",
        r"
        # The server closes its socket for a moment after each transfer: clients try again.
        (become_ours iperf3 -4 -s -B 192.0.2.2 >server 2>&1) &
        started=$!
        until_works iperf3 -c 192.0.2.2 -n 1K
        until_works iperf3 -c 192.0.2.2 -n 64M
        until_works iperf3 -c 192.0.2.2 -n 64M -R -P 3
        until_works iperf3 -c 192.0.2.2 -u -b 50M -n 5M
        # Its handler leaves the interrupted call by longjmp(3).
        kill $started; wait $started || true
        iperf3 -4 -s -B 192.0.2.1 >server 2>&1 &
        started=$!
        until_works iperf3 -c 192.0.2.1 -n 1K
        until_works ours iperf3 -c 192.0.2.1 -n 64M
        until_works ours iperf3 -c 192.0.2.1 -n 64M -R -P 3
        until_works ours iperf3 -c 192.0.2.1 -u -b 50M -n 5M -R
        ",
    );
}

/// Goal: Redis serves its own clients and benchmark, and its client works.
#[test]
fn redis_is_server_and_client() {
    check(
        "redis-server redis-cli redis-benchmark",
        r#"
        (become_ours redis-server --bind 192.0.2.2 --protected-mode no --save '' >log 2>&1) &
        started=$!
        until_works redis-cli -h 192.0.2.2 ping
        redis-benchmark -h 192.0.2.2 -q -n 20000 -c 50 -t set,get >/dev/null
        redis-benchmark -h 192.0.2.2 -q -n 100000 -c 50 -P 16 -t set,get,lrange_100 >/dev/null
        test "$(redis-cli -h 192.0.2.2 set key value)" = OK
        kill $started; wait $started || true
        redis-server --bind 192.0.2.1 --protected-mode no --save '' >log 2>&1 &
        started=$!
        until_works redis-cli -h 192.0.2.1 ping
        test "$(ours redis-cli -h 192.0.2.1 set key value)" = OK
        test "$(ours redis-cli -h 192.0.2.1 get key)" = value
        ours redis-benchmark -h 192.0.2.1 -q -n 20000 -c 50 -t set,get >/dev/null
        "#,
    );
}

/// Goal: nginx with one process serves files and is the client of a server behind it.
#[test]
fn nginx_serves() {
    check(
        "nginx curl python3",
        r#"
        head -c 3000000 /dev/urandom >data
        python3 -m http.server --bind 192.0.2.1 8000 >/dev/null 2>&1 &
        behind=$!
        started=$behind
        until_works curl -s http://192.0.2.1:8000/
        cat >nginx.conf <<END
        daemon off; master_process off; worker_processes 1; pid $work/pid; error_log $work/log;
        user root;
        events { worker_connections 256; }
        http {
            access_log off; sendfile on;
            client_body_temp_path $work/temp_a; proxy_temp_path $work/temp_b;
            fastcgi_temp_path $work/temp_c; uwsgi_temp_path $work/temp_d;
            scgi_temp_path $work/temp_e;
            server {
                listen 192.0.2.2:80; root $work;
                location /behind/ { proxy_pass http://192.0.2.1:8000/; }
            }
        }
END
        (become_ours nginx -p "$work" -c "$work/nginx.conf") &
        started="$behind $!"
        until_works curl -s http://192.0.2.2/data
        for way in data behind/data; do
            url=http://192.0.2.2/$way
            curl -sS --parallel -o a -o b -o c $url $url $url
            for got in a b c; do cmp data $got; done
        done
        if command -v wrk >/dev/null; then
            wrk -t 1 -c 40 -d 2 http://192.0.2.2/nginx.conf >wrk
            ! grep -q -e 'Socket errors' -e 'Non-2xx' wrk
        fi
        "#,
    );
}

/// Goal: dig, whose library closes sockets with `syscall`, asks a server that answers, and ends.
#[test]
fn dig_is_a_client() {
    check(
        "dig python3 timeout",
        r#"
        python3 -c 'if True:
            import socket
            server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            server.bind(("192.0.2.1", 5300))
            while True:
                question, client = server.recvfrom(600)
                # The same message as an answer: the name does not exist.
                server.sendto(question[:2] + b"\x81\x83" + question[4:], client)' &
        started=$!
        until_works dig +tries=1 +time=1 +noedns -p 5300 @192.0.2.1 example.org
        ours timeout -s KILL 20 dig +tries=3 +time=3 +noedns -p 5300 @192.0.2.1 example.org >answer
        grep -q NXDOMAIN answer
        "#,
    );
}

/// Goal: two programs with stacks of their own, joined by streams of frames.
#[test]
fn programs_meet_over_a_stream() {
    check(
        "socat curl python3",
        r#"
        head -c 3000000 /dev/urandom >data
        socat UNIX-LISTEN:a.sock UNIX-LISTEN:b.sock &
        started=$!
        until_works test -S a.sock
        link=stream:a.sock,address=10.0.2.20/24
        (become_ours python3 -m http.server 8000 --bind 10.0.2.20 >/dev/null 2>&1) &
        started="$started $!"
        until_works test -S b.sock
        link=stream:b.sock,address=10.0.2.21/24
        url=http://10.0.2.20:8000/data
        ours curl -sS --retry 20 --retry-delay 1 --retry-all-errors -o got $url
        cmp data got
        "#,
    );
}

/// Goal: wrong settings end a program before it does anything; a link that cannot be used fails its
/// Internet sockets, and nothing else. The message is printed once.
#[test]
fn wrong_settings_are_reported() {
    check(
        "python3 grep",
        r#"
        code=0; link=eth0; ours touch done 2>message || code=$?
        test $code = 2 -a ! -e done
        grep -q '^towpath: TOWPATH_PRELOAD: `eth0`' message
        code=0; env LD_PRELOAD="$LIBRARY" touch done 2>message || code=$?
        test $code = 2 -a ! -e done
        link=stream:/nowhere/socket,address=192.0.2.2/24
        ours touch done
        test -e done
        ours python3 -c 'if True:
            import errno, socket
            socket.socketpair()
            for _ in range(3):
                try:
                    socket.socket()
                    raise SystemExit(1)
                except OSError as error:
                    assert error.errno == errno.ENETDOWN, error' 2>message
        test "$(grep -c '/nowhere/socket' message)" = 1
        "#,
    );
}

/// Goal: what a program wrote before it exits arrives.
#[test]
fn the_last_bytes_arrive() {
    check(
        "python3 cmp",
        r#"
        head -c 2000000 /dev/urandom >data
        python3 -c 'if True:
            import socket
            with socket.create_server(("192.0.2.1", 8000)) as server:
                got = server.accept()[0].makefile("rb").read()
                open("got", "wb").write(got)' &
        started=$!
        sleep 0.5
        ours python3 -c 'if True:
            import socket, os
            stream = socket.create_connection(("192.0.2.1", 8000))
            stream.sendall(open("data", "rb").read())'
        wait $started
        started=
        cmp data got
        "#,
    );
}
