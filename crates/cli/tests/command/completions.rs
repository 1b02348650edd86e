//! Completions: each shell reads its script and completes with it, and `make install` installs it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::*;

/// Runs a script of a shell, in which $1 is the command; returns `None` if there is no such shell.
fn in_shell(shell: &[&str], script: &str) -> Option<Output> {
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).args(["-c", script, shell[0], TOWPATH]);
    match Command::new("sh").args(["-c", &format!("command -v {}", shell[0])]).output() {
        Ok(found) if found.status.success() => Some(output(&mut command)),
        _ => None,
    }
}

/// Goal: bash completes commands, options, values and what follows the program. Method: the
/// function that the script defines is called as bash calls it.
#[test]
fn bash_completes() {
    let script = r#"
        source <("$1" completions bash) || exit 9
        complete -p towpath
        try() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _towpath towpath "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            echo "${COMPREPLY[*]}"
        }
        try towpath do
        try towpath completions ''
        try towpath run --map-r
        try towpath ls pub
        try towpath ''
    "#;
    let Some(shown) = in_shell(&["bash", "--norc"], script) else {
        eprintln!("skipped: bash is not installed");
        return;
    };
    assert_eq!(shown.status.code(), Some(0), "{}", errors(&shown));
    assert_eq!(errors(&shown), "");
    let shown = text(&shown);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].contains("-F _towpath") && lines[0].ends_with("towpath"), "{shown}");
    assert_eq!(lines[1], "doctor");
    for word in ["bash", "zsh", "fish"] {
        assert!(lines[2].split(' ').any(|other| other == word), "{shown}");
    }
    assert_eq!(lines[3], "--map-root");
    assert_eq!(lines[4], "published");
    let has = |word| lines[5].split(' ').any(|other| other == word);
    assert!(has("run") && has("doctor") && !has("man"), "hidden commands: {shown}");
}

#[test]
fn zsh_completes() {
    let script = r#"
        autoload -U compinit; compinit -u -D || exit 9
        source <("$1" completions zsh) || exit 8
        whence -w _towpath; echo "${_comps[towpath]}"
    "#;
    let Some(shown) = in_shell(&["zsh", "-f"], script) else {
        eprintln!("skipped: zsh is not installed");
        return;
    };
    assert_eq!(text(&shown), "_towpath: function\n_towpath\n", "{}", errors(&shown));
    assert_eq!(errors(&shown), "");
}

#[test]
fn fish_completes() {
    let script = r#"
        $argv[1] completions fish | source; or exit 9
        complete --do-complete 'towpath doc'
        complete --do-complete 'towpath run --map-'
    "#;
    // fish has no $0: its first argument is that of the script.
    let script = script.replace("$argv[1]", "$argv[2]");
    let Some(shown) = in_shell(&["fish", "--no-config"], &script) else {
        eprintln!("skipped: fish is not installed");
        return;
    };
    let shown = (text(&shown), errors(&shown));
    assert!(shown.0.starts_with("doctor\t"), "{shown:?}");
    assert!(shown.0.contains("--map-root") && shown.0.contains("--map-host-loopback"), "{shown:?}");
}

/// Goal: `make install` puts the command, its manual pages and completions where they are looked
/// for, readable by all.
#[test]
fn everything_is_installed() {
    skip_if!(Command::new("make").arg("-v").output().is_err().then_some("make is not installed"));
    use std::os::unix::fs::PermissionsExt;
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("command-installed");
    let _ = fs::remove_dir_all(&root);
    let built = Path::new(TOWPATH).parent().unwrap();
    let mut make = Command::new("sh");
    let script = "umask 077; exec make --silent install-command PREFIX=/usr \"DESTDIR=$1\" \
                  \"built=$2\"";
    make.args(["-c", script, "sh"]).arg(&root).arg(built);
    make.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).env_remove("MAKEFLAGS");
    let made = output(&mut make);
    assert_eq!(made.status.code(), Some(0), "{}", errors(&made));
    for (shell, path) in [
        ("bash", "bash-completion/completions/towpath"),
        ("zsh", "zsh/site-functions/_towpath"),
        ("fish", "fish/vendor_completions.d/towpath.fish"),
    ] {
        let path = root.join("usr/share").join(path);
        let script = text(&output(&mut towpath(["completions", shell])));
        assert!(script.len() > 1000);
        assert!(fs::read_to_string(&path).unwrap() == script, "{}", path.display());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    }
    for page in ["towpath.1", "towpath-run.1", "towpath-doctor.1"] {
        assert!(root.join("usr/share/man/man1").join(page).exists(), "{page}");
    }
    fs::remove_dir_all(&root).unwrap();
}
