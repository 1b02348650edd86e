//! The C side: the header agrees with the library, and C programs compile and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Names that begin with `towpath_` and are followed by an opening parenthesis, sorted.
fn functions(text: &str, before: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in text.lines().filter(|line| line.contains(before) && !line.starts_with("//")) {
        for (at, _) in line.match_indices("towpath_") {
            let rest = &line[at..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(0);
            if rest[end..].starts_with('(') {
                names.push(rest[..end].to_string());
            }
        }
    }
    names.sort();
    names.dedup();
    names
}

/// Goal: the header declares exactly the functions of the library.
#[test]
fn the_header_declares_what_the_library_has() {
    let header = std::fs::read_to_string(package().join("include/towpath.h")).expect("header");
    let source: String =
        ["abi.rs", "abi/lent_receive.rs", "abi/lifetime.rs", "abi/queue.rs", "abi/mmsg.rs"]
            .map(|path| std::fs::read_to_string(package().join("src").join(path)).expect("source"))
            .concat();
    // Programs compile inline functions themselves.
    let inline = functions(&header, "static inline");
    let mut declared = functions(&header, "");
    declared.retain(|name| !inline.contains(name));
    assert!(declared.len() > 30 && inline.len() > 15);
    assert_eq!(declared, functions(&source, "fn towpath_"));
}

/// Goal: the header can be used in all versions of strict C and C++.
#[test]
fn the_header_compiles_in_all_versions_of_c() {
    for (compiler, language, standards) in [
        ("cc", "c", &["c99", "c11", "c17", "gnu11"][..]),
        ("c++", "c++", &["c++11", "c++17", "c++20"][..]),
    ] {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("skipped: there is no {compiler}");
            continue;
        }
        for standard in standards {
            let compiled = Command::new(compiler)
                .args(["-Wall", "-Wextra", "-Wcast-qual", "-pedantic", "-Werror"])
                .args(["-fsyntax-only", &format!("-std={standard}"), "-x", language])
                .arg(package().join("include/towpath.h"))
                .output()
                .expect("it runs");
            let reported = String::from_utf8_lossy(&compiled.stderr);
            assert!(compiled.status.success(), "{standard}: {reported}");
        }
    }
}

/// Goal: the numbers of event queues are the same in the header and in the library.
#[test]
fn the_header_has_the_numbers_of_the_library() {
    let header = std::fs::read_to_string(package().join("include/towpath.h")).expect("header");
    let numbers = package().join("src/queue/numbers.rs");
    let numbers = std::fs::read_to_string(numbers).expect("numbers");
    let defined: Vec<(&str, &str)> = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define TOWPATH_")?.split_once(' '))
        .map(|(name, value)| (name, value.trim_end_matches('u')))
        .collect();
    let constants: Vec<(&str, &str)> = numbers
        .lines()
        .filter_map(|line| line.strip_prefix("pub(crate) const ")?.split_once(": "))
        .filter_map(|(name, rest)| Some((name, rest.split_once(" = ")?.1.trim_end_matches(';'))))
        .collect();
    assert!(constants.len() > 30);
    for constant in constants {
        assert!(defined.contains(&constant), "{constant:?}");
    }
}

/// Compiles a C program against header and library. Returns its path, and the library's folder.
fn compile(name: &str, source: &Path) -> (PathBuf, PathBuf) {
    compile_with(name, source, &[])
}

/// Compiles a C program with additional flags.
fn compile_with(name: &str, source: &Path, flags: &[&str]) -> (PathBuf, PathBuf) {
    let own = std::env::current_exe().expect("path of this program");
    let libraries = own.parent().expect("folder").to_path_buf();
    let library = libraries.join("libtowpath_capi.so");
    assert!(library.exists(), "{} was built with this test", library.display());
    // The name that programs look for.
    let found = libraries.join(concat!("libtowpath.so.", env!("CARGO_PKG_VERSION_MAJOR")));
    let _ = std::os::unix::fs::symlink("libtowpath_capi.so", &found);
    let program: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let compiled = Command::new("cc")
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg("-I")
        .arg(package().join("include"))
        .arg(&library)
        .status();
    assert!(compiled.expect("a C compiler").success());
    (program, libraries)
}

/// Goal: programs elsewhere find the installed library by pkg-config alone, shared and static, and
/// header and library have the same version. Method: `make install` into an empty root.
#[test]
fn an_installed_library_is_found_by_pkg_config() {
    let missing = |program: &str| Command::new(program).arg("--version").output().is_err();
    if let Some(program) = ["make", "pkg-config"].into_iter().find(|program| missing(program)) {
        eprintln!("skipped: there is no {program}");
        return;
    }
    let own = std::env::current_exe().expect("path of this program");
    let built = own.parent().expect("folder");
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
    let _ = std::fs::remove_dir_all(&root);
    let installed = Command::new("make")
        .args(["--silent", "install-library", "PREFIX=/opt/net"])
        .arg(format!("DESTDIR={}", root.display()))
        .arg(format!("built={}", built.display()))
        .current_dir(package().join("../.."))
        .output()
        .expect("make");
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let source = root.join("version.c");
    std::fs::write(&source, VERSION_OF_THE_LIBRARY).expect("a file");
    let libraries = root.join("opt/net/lib");
    for (kind, flags) in [("shared", &["--libs"][..]), ("static", &["--static", "--libs"])] {
        let reported = Command::new("pkg-config")
            .args(["--cflags", "towpath"])
            .args(flags)
            .env("PKG_CONFIG_PATH", libraries.join("pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", &root)
            .output()
            .expect("pkg-config");
        assert!(reported.status.success(), "{}", String::from_utf8_lossy(&reported.stderr));
        let flags = String::from_utf8(reported.stdout).expect("text");
        if kind == "static" {
            // Both libraries are installed, and the linker prefers the shared one.
            std::fs::remove_file(libraries.join("libtowpath.so")).expect("it was installed");
        }
        let program = root.join(kind);
        let compiled = Command::new("cc")
            .args(["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-o"])
            .arg(&program)
            .arg(&source)
            .args(flags.split_ascii_whitespace())
            .status();
        assert!(compiled.expect("a C compiler").success(), "{flags}");
        let mut ran = Command::new(&program);
        if kind == "shared" {
            ran.env("LD_LIBRARY_PATH", &libraries);
        }
        let ran = ran.output().expect("it runs");
        let reported = String::from_utf8_lossy(&ran.stdout);
        assert_eq!(reported, concat!(env!("CARGO_PKG_VERSION"), "\n"), "{kind}: {ran:?}");
    }
}

/// A program that prints its version if header and library have the same one.
const VERSION_OF_THE_LIBRARY: &str = r#"
#include <towpath.h>
#include <stdio.h>

int main(void)
{
	struct towpath *net = towpath_new("192.0.2.1/24", 1500);
	if (!net || towpath_version() != TOWPATH_VERSION)
		return 1;
	towpath_free(net);
	printf("%d.%d.%d\n", TOWPATH_VERSION_MAJOR, TOWPATH_VERSION_MINOR, TOWPATH_VERSION_PATCH);
	return 0;
}
"#;

fn compile_and_run(name: &str, source: &Path) -> Output {
    let (program, libraries) = compile(name, source);
    Command::new(&program).env("LD_LIBRARY_PATH", &libraries).output().expect("runs")
}

fn assert_ok(ran: &Output) {
    assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
    assert_eq!(ran.stdout, b"ok\n");
}

/// Goal: C programs can use the library. Method: two instances back to back.
#[test]
fn a_c_program_compiles_and_runs() {
    assert_ok(&compile_and_run("abi", &package().join("tests/abi.c")));
}

/// Goal: sends until no more is accepted leave enough memory for the acknowledgments.
#[test]
fn a_c_program_sends_all_it_can() {
    assert_ok(&compile_and_run("pressure", &package().join("tests/pressure.c")));
}

/// Goal: event queues report every kind of source and every error to C programs.
#[test]
fn a_c_program_waits_for_everything() {
    assert_ok(&compile_and_run("queue", &package().join("tests/queue.c")));
}

/// Goal: programs of other versions of the library can pass structures of other sizes, and prepared
/// operations are filled correctly.
#[test]
fn a_c_program_passes_structures_of_any_version() {
    assert_ok(&compile_and_run("shapes", &package().join("tests/shapes.c")));
}

/// Goal: operations of event queues do what the calls would do, and return all memory.
#[test]
fn a_c_program_submits_operations() {
    assert_ok(&compile_and_run("operations", &package().join("tests/operations.c")));
}

/// Goal: operations of event queues on sockets of the kernel, on datagrams and on files do what the
/// calls would do, and return all memory.
#[test]
fn a_c_program_submits_operations_to_the_kernel() {
    assert_ok(&compile_and_run("kernel", &package().join("tests/kernel.c")));
}

/// Goal: sends lend the program's memory and report twice: when it is accepted, and when it is
/// back, copied or not.
#[test]
fn a_c_program_sends_without_copying() {
    assert_ok(&compile_and_run("zerocopy", &package().join("tests/zerocopy.c")));
}

/// Goal: bytes move completely between files and streams of instances and of the kernel. A transfer
/// that ends early accounts for each byte.
#[test]
fn a_c_program_moves_bytes_of_instances() {
    assert_ok(&compile_and_run("transfer", &package().join("tests/transfer.c")));
}

/// Goal: multishot receives fill buffers of groups, and no byte and no buffer is lost.
#[test]
fn a_c_program_receives_into_groups() {
    assert_ok(&compile_and_run("groups", &package().join("tests/groups.c")));
}

/// Goal: operations that end early lose no byte and no registration.
#[test]
fn what_ends_early_loses_nothing() {
    assert_ok(&compile_and_run("endings", &package().join("tests/endings.c")));
}

/// Goal: the example of the cookbook is a complete program.
#[test]
fn the_example_of_the_cookbook_compiles() {
    let book = std::fs::read_to_string(package().join("../../docs/cookbook.md")).expect("cookbook");
    let (_, rest) = book.split_once("```c\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cookbook.c");
    std::fs::write(&source, example).expect("written");
    compile("cookbook", &source);
}

/// Goal: every function is in a manual page.
#[test]
fn manual_pages_name_what_the_header_declares() {
    let pages: String = [
        "new",
        "attach",
        "socket",
        "setsockopt",
        "poll",
        "queue_new",
        "queue_change",
        "queue_submit",
        "queue_wait",
        "prep",
    ]
    .map(|name| package().join(format!("../../docs/man/towpath_{name}.3")))
    .map(|path| std::fs::read_to_string(path).expect("a page"))
    .concat();
    let header = std::fs::read_to_string(package().join("include/towpath.h")).expect("header");
    for name in functions(&header, "") {
        let short = name.trim_start_matches("towpath_");
        let words = || pages.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        assert!(words().any(|word| word == name || word == short), "{name}");
    }
}

/// Goal: on a TAP device a C program exchanges data with the kernel's TCP in both directions, over
/// both versions of IP, and nothing is left when the instance has ended.
#[test]
fn a_c_program_talks_to_the_kernel() {
    let ran = compile_and_run("tap", &package().join("tests/tap.c"));
    if ran.status.code() == Some(SKIPPED) {
        println!("skipped: no TAP device: {}", String::from_utf8_lossy(&ran.stderr).trim());
        return;
    }
    assert_ok(&ran);
}

/// Goal: a large call returns its memory in parts, each once and in order, while its peer has not
/// read the rest; also with losses, a limit, a recall, a reset and a close.
#[test]
fn a_c_program_gets_a_large_call_back_in_parts() {
    let ran = compile_and_run("parts", &package().join("tests/parts.c"));
    if ran.status.code() == Some(SKIPPED) {
        println!("skipped: no TAP device: {}", String::from_utf8_lossy(&ran.stderr).trim());
        return;
    }
    assert_ok(&ran);
}

/// Goal: a program that lends where that pays has a notice for each call, whichever way it went.
#[test]
fn a_c_program_leaves_the_choice_to_the_library() {
    let ran = compile_and_run("choices", &package().join("tests/choices.c"));
    if ran.status.code() == Some(SKIPPED) {
        println!("skipped: no TAP device: {}", String::from_utf8_lossy(&ran.stderr).trim());
        return;
    }
    assert_ok(&ran);
}

/// Goal: datagrams to groups reach their members in both directions, and the kernel receives the
/// reports of a C program's groups. Errors are those of the kernel.
#[test]
fn a_c_program_is_a_member_of_groups() {
    let ran = compile_and_run("multicast", &package().join("tests/multicast.c"));
    if ran.status.code() == Some(SKIPPED) {
        println!("skipped: no TAP device: {}", String::from_utf8_lossy(&ran.stderr).trim());
        return;
    }
    assert_ok(&ran);
}

/// Goal: written data arrives within a bounded time although its instance ends, and programs can
/// wait for it.
#[test]
fn what_a_c_program_wrote_arrives() {
    let ran = compile_and_run("finish", &package().join("tests/finish.c"));
    if ran.status.code() == Some(SKIPPED) {
        println!("skipped: no TAP device: {}", String::from_utf8_lossy(&ran.stderr).trim());
        return;
    }
    assert_ok(&ran);
}

/// Goal: signals interrupt calls that wait, as they interrupt those of the kernel.
#[test]
fn a_c_program_is_interrupted() {
    assert_ok(&compile_and_run("interrupt", &package().join("tests/interrupt.c")));
}

/// Goal: the example of event queues serves the kernel's clients, woken by the instance's thread.
#[test]
fn the_echo_server_echoes() {
    let ran = compile_and_run("echo", &package().join("tests/echo.c"));
    if ran.status.code() == Some(SKIPPED) {
        println!("skipped: no TAP device: {}", String::from_utf8_lossy(&ran.stderr).trim());
        return;
    }
    assert_ok(&ran);
}

/// Goal: datagrams pass between an instance on a TAP device and the kernel, and both return the
/// same errors.
#[test]
fn a_c_program_sends_datagrams_to_the_kernel() {
    let ran = compile_and_run("udp", &package().join("tests/udp.c"));
    if ran.status.code() == Some(SKIPPED) {
        println!("skipped: no TAP device: {}", String::from_utf8_lossy(&ran.stderr).trim());
        return;
    }
    assert_ok(&ran);
}

/// Goal: raw IP packets pass between an instance on a TAP device and the kernel, and both return
/// the same errors.
#[test]
fn a_c_program_sends_packets_to_the_kernel() {
    let ran = compile_and_run("raw", &package().join("tests/raw.c"));
    if ran.status.code() == Some(SKIPPED) {
        println!("skipped: no TAP device: {}", String::from_utf8_lossy(&ran.stderr).trim());
        return;
    }
    assert_ok(&ran);
}

/// Goal: frames pass between an instance on a TAP device and the kernel, and both return the same
/// errors.
#[test]
fn a_c_program_sends_frames_to_the_kernel() {
    let ran = compile_and_run("packet", &package().join("tests/packet.c"));
    if ran.status.code() == Some(SKIPPED) {
        println!("skipped: no TAP device: {}", String::from_utf8_lossy(&ran.stderr).trim());
        return;
    }
    assert_ok(&ran);
}

/// Exit code of a C program that cannot run on this machine.
const SKIPPED: i32 = 77;

/// All C programs of the tests.
const PROGRAMS: [&str; 20] = [
    "abi",
    "choices",
    "echo",
    "endings",
    "finish",
    "groups",
    "interrupt",
    "kernel",
    "multicast",
    "operations",
    "packet",
    "parts",
    "pressure",
    "queue",
    "raw",
    "shapes",
    "tap",
    "transfer",
    "udp",
    "zerocopy",
];

/// Programs that always run under valgrind, because they take only seconds there.
const UNDER_VALGRIND: [&str; 1] = ["shapes"];

/// Programs that cannot run under valgrind: it does not support their system calls, lacks memory
/// for their mappings, is too slow for their time limits, or reports the invalid arguments that
/// they pass to the kernel on purpose (`tap`).
const NOT_UNDER_VALGRIND: [&str; 6] = ["echo", "kernel", "pressure", "queue", "raw", "tap"];

/// Flags that detect invalid uses of memory and undefined behaviour. With more optimisation or
/// debug information some programs take a minute to compile.
const SANITIZERS: [&str; 4] =
    ["-Og", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"];

fn source_of(program: &str) -> PathBuf {
    package().join("tests").join(program).with_extension("c")
}

/// Goal: the list contains every program.
#[test]
fn all_c_programs_are_known() {
    let files = std::fs::read_dir(package().join("tests")).expect("the tests");
    let paths = files.map(|file| file.expect("a file").path());
    let sources = paths.filter(|path| path.extension().is_some_and(|extension| extension == "c"));
    let mut names: Vec<_> = sources.filter_map(|path| Some(path.file_stem()?.to_owned())).collect();
    names.sort();
    assert_eq!(names, PROGRAMS);
}

/// Goal: programs and library use no memory that is not theirs, leak none, and have no undefined
/// behaviour. The library's own allocations are checked like the program's.
#[test]
fn c_programs_are_clean_under_sanitizers() {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nothing.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("written");
    let tried = Command::new("cc")
        .args(SANITIZERS)
        .arg("-o")
        .arg(source.with_extension("sanitized"))
        .arg(&source)
        .output();
    if !tried.expect("a C compiler").status.success() {
        println!("skipped: the compiler has no sanitizers");
        return;
    }
    for program in PROGRAMS {
        let name = format!("{program}-sanitized");
        let (path, libraries) = compile_with(&name, &source_of(program), &SANITIZERS);
        let ran = Command::new(path).env("LD_LIBRARY_PATH", libraries).output().expect("runs");
        assert_clean(program, &ran);
    }
}

/// Goal: valgrind, which checks each instruction, also of the library, finds no invalid use of
/// memory.
#[test]
fn some_c_programs_are_clean_under_valgrind() {
    under_valgrind(&UNDER_VALGRIND);
}

/// Goal: valgrind finds no invalid use of memory in any program that it can run.
#[test]
#[ignore = "takes minutes"]
fn c_programs_are_clean_under_valgrind() {
    let others = PROGRAMS.into_iter().filter(|name| !NOT_UNDER_VALGRIND.contains(name));
    under_valgrind(&others.collect::<Vec<_>>());
}

fn under_valgrind(programs: &[&str]) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: there is no valgrind");
        return;
    }
    let known = package().join("tests/valgrind.supp");
    for program in programs {
        // The sanitizers report leaks. Here valgrind would also report those of child processes,
        // which have no threads that hold the memory.
        let name = format!("{program}-under-valgrind");
        let (path, libraries) = compile_with(&name, &source_of(program), &["-g1"]);
        let ran = Command::new("valgrind")
            .args(["--quiet", "--error-exitcode=99", "--leak-check=no", "--fair-sched=try"])
            .arg(format!("--suppressions={}", known.display()))
            .arg(path)
            .env("LD_LIBRARY_PATH", libraries)
            .output()
            .expect("valgrind");
        assert_clean(program, &ran);
    }
}

fn assert_clean(program: &str, ran: &Output) {
    let reported = String::from_utf8_lossy(&ran.stderr);
    if ran.status.code() == Some(SKIPPED) {
        println!("skipped: {program}: no TAP device: {}", reported.trim());
        return;
    }
    assert!(ran.status.success() && ran.stdout == b"ok\n", "{program}: {}: {reported}", ran.status);
}
