//! Other programs: where they are, and what they print about themselves.

use std::env;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use towpath_io::namespace::channel::wait_readable;

/// Longest wait for each part of the output; programs print their version in milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of a program's output that are read; help texts have some thousand.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Returns the program `name` in the `PATH`.
pub(super) fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let all = env::split_paths(&path).map(|folder| folder.join(name));
    all.into_iter().find(|file| is_program(file))
}

/// Whether `path` is a file that a user may execute.
pub(super) fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns what a program prints on both streams; `None` if it cannot be started, does not end or
/// fails.
pub(super) fn output(program: &Path, arguments: &[&str]) -> Option<String> {
    let (mut reader, writer) = std::io::pipe().ok()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(writer.try_clone().ok()?).stderr(writer);
    let mut child = command.spawn().ok()?;
    // The command holds the writing end, too.
    drop(command);
    let mut bytes = Vec::new();
    let mut has_ended = false;
    while !has_ended && bytes.len() < OUTPUT_BYTES_MAX {
        match wait_readable(&[reader.as_fd()], Some(PATIENCE)) {
            Ok(Some(_)) => {}
            _ => break,
        }
        let mut buffer = [0; 4096];
        let Ok(count) = reader.read(&mut buffer) else { break };
        has_ended = count == 0;
        bytes.extend_from_slice(&buffer[..count]);
    }
    if !has_ended {
        // It may have ended by itself.
        let _ = child.kill();
    }
    let status = child.wait().ok()?;
    (has_ended && status.success()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the first line that a program prints with `--version`; `None` if it does not run. Some
/// versions of pasta print nothing to a pipe.
pub(super) fn version_line(program: &Path) -> Option<String> {
    let text = output(program, &["--version"])?;
    Some(text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned())
}

/// Returns the first number with a dot in a text, such as 5.4.2 in `podman version 5.4.2`.
pub(super) fn version_in(text: &str) -> Option<Version> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    words.into_iter().find_map(|word| {
        let mut numbers = word.split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some((major, minor))
    })
}

/// Major and minor number of a program.
pub(super) type Version = (u32, u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found() {
        assert_eq!(version_in("podman version 5.4.2"), Some((5, 4)));
        assert_eq!(version_in("rootlesskit version 2.0.2+dfsg1"), Some((2, 0)));
        assert_eq!(version_in("buildah version 1.28.2 (image-spec 1.0.2)"), Some((1, 28)));
        assert_eq!(version_in("QEMU emulator version 7.2.19 (Debian 1:7.2)"), Some((7, 2)));
        for none in ["", "podman", "version 5", "...", "a.b"] {
            assert_eq!(version_in(none), None, "{none}");
        }
    }

    #[test]
    fn programs_are_asked() {
        let sh = in_path("sh").expect("a shell");
        assert!(is_program(&sh) && !is_program(Path::new("/etc")) && !is_program(Path::new("/")));
        assert_eq!(output(&sh, &["-c", "echo a; echo b >&2"]).as_deref(), Some("a\nb\n"));
        assert_eq!(output(Path::new("/no/such"), &[]), None);
        assert_eq!(output(&sh, &["-c", "echo a; exit 1"]), None);
        let endless = "while :; do echo 0123456789012345678901234567890123456789; done";
        assert_eq!(output(&sh, &["-c", endless]), None, "it is killed");
    }
}
