//! Checks that unsafe code and imports of atomics are only in the permitted files.

use crate::source::Source;

/// Files that may contain unsafe code, besides tests.
const UNSAFE_FILES: [&str; 37] = [
    "crates/bench/src/events/mapped.rs",
    "crates/bench/src/events/plain_ring.rs",
    "crates/capi/src/abi.rs",
    "crates/capi/src/abi/extensible.rs",
    "crates/capi/src/abi/lent_receive.rs",
    "crates/capi/src/abi/lifetime.rs",
    "crates/capi/src/abi/queue.rs",
    "crates/capi/src/abi/mmsg.rs",
    "crates/capi/src/packetdrill/entry.rs",
    "crates/capi/src/memory/pointers.rs",
    "crates/io/src/events/ring.rs",
    "crates/io/src/gather.rs",
    "crates/io/src/large_pages.rs",
    "crates/io/src/process_sys.rs",
    "crates/io/src/sealed.rs",
    "crates/io/src/sys.rs",
    "crates/io/src/uplink/calls.rs",
    "crates/io/src/uplink/umem.rs",
    "crates/io/src/vhost_user/sigbus.rs",
    "crates/io/src/vhost_user/memory.rs",
    "crates/io/src/vhost_user/shared.rs",
    "crates/packet/src/foreign.rs",
    "crates/packet/src/lend.rs",
    "crates/packet/src/loan.rs",
    "crates/packet/src/loan/holders.rs",
    "crates/packet/src/loan/pin.rs",
    "crates/packet/src/packet.rs",
    "crates/packet/src/pool.rs",
    "crates/packet/src/recall.rs",
    "crates/packet/src/region.rs",
    "crates/packet/src/ring/fill.rs",
    "crates/packet/src/ring/shared.rs",
    "crates/packet/src/slab.rs",
    "crates/preload/src/exports.rs",
    "crates/preload/src/exports/numbers.rs",
    "crates/preload/src/exports/wait.rs",
    "crates/preload/src/next.rs",
];
/// The only file that imports atomics, so that loom sees all of them.
const SYNC_FILE: &str = "crates/packet/src/sync.rs";
/// The keyword to look for.
const UNSAFE: &str = concat!("un", "safe");

pub(super) fn check(files: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        let may = UNSAFE_FILES.contains(&file.path.as_str());
        let atomics = file.path == SYNC_FILE || !file.path.starts_with("crates/");
        for (number, code) in file.code() {
            if !may && is_unsafe(code) {
                problems.push(format!("{}:{number}: {UNSAFE} code", file.path));
            }
            if !atomics && code.contains("sync::atomic") {
                problems.push(format!(
                    "{}:{number}: atomics come from `towpath_packet::sync`",
                    file.path
                ));
            }
        }
    }
    for path in UNSAFE_FILES.iter().filter(|path| !files.iter().any(|file| file.path == **path)) {
        problems.push(format!("{path} is in the list of {UNSAFE} files and does not exist"));
    }
    problems
}

/// True for an unsafe block, function, implementation, trait or attribute, but not for a lint's
/// name.
fn is_unsafe(code: &str) -> bool {
    code.match_indices(UNSAFE).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + UNSAFE.len()..].trim_start_matches(' ');
        let is_word = before.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
        let starts = ["{", "(", "fn ", "impl ", "impl<", "extern ", "trait "];
        is_word && starts.iter().any(|start| after.starts_with(start))
    }) || code.contains(&format!("allow({UNSAFE}_code)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates all listed files, so that only the given file can have a problem.
    fn problems(path: &str, text: &str) -> usize {
        let mut files: Vec<_> = UNSAFE_FILES.map(|path| Source::new(path, "")).into();
        files.push(Source::new(path, text));
        check(&files).len()
    }

    #[test]
    fn code_outside_of_the_list_is_found() {
        for code in ["{ a() }", "fn a() {}", "impl Send for A {}", "extern \"C\" {}", "(no_mangle)"]
        {
            let text = format!("let x = {UNSAFE} {code}");
            assert_eq!(problems("crates/io/src/tap.rs", &text), 1, "{code}");
            assert_eq!(problems("crates/io/src/sys.rs", &text), 0, "{code}");
            assert_eq!(problems("crates/io/tests/tap.rs", &text), 0, "{code}");
        }
        assert_eq!(problems("crates/a/src/b.rs", &format!("#![forbid({UNSAFE}_code)]")), 0);
        assert_eq!(problems("crates/a/src/b.rs", &format!("#![allow({UNSAFE}_code)]")), 1);
        assert_eq!(problems("crates/a/src/b.rs", &format!("// {UNSAFE} fn a()")), 0);
    }

    #[test]
    fn atomics_have_one_importer() {
        let text = "use core::sync::atomic::AtomicBool;";
        assert_eq!(problems("crates/packet/src/pool.rs", text), 1);
        assert_eq!(problems(SYNC_FILE, text), 0);
    }
}
