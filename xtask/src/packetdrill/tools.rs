//! The environment of a script: settings as plain files, and commands that record their arguments.

use super::settings;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Shell script that runs packetdrill with the given arguments and towpath loaded.
///
/// The folder of settings is a tmpfs in this namespace, filled with the defaults and also
/// bind-mounted below `/proc/sys`. The shell for a script's commands is bash, because one script
/// needs it.
const TOWPATH: &str = r#"set -e
defaults="$TOWPATH_SETTINGS.defaults"
mount -t tmpfs towpath "$TOWPATH_SETTINGS"
cp -R "$defaults/." "$TOWPATH_SETTINGS"
mount --bind "$TOWPATH_SETTINGS/ipv4" /proc/sys/net/ipv4
bash=$(command -v bash) && mount --bind "$bash" "$(readlink -f /bin/sh)"
PATH="$TOWPATH_COMMANDS:$PATH"
export PATH
LD_PRELOAD="$TOWPATH_LIBRARY" exec "$@"
"#;

/// Shell script that runs packetdrill with the given arguments on the kernel. packetdrill locks its
/// memory. The limit of an ordinary user is so low that its threads need small stacks.
const KERNEL: &str = r#"set -e
ip link set lo up
bash=$(command -v bash) && mount --bind "$bash" "$(readlink -f /bin/sh)"
[ -z "$TOWPATH_STACK_KIB" ] || ulimit -s "$TOWPATH_STACK_KIB"
exec "$@"
"#;

/// `ip`: records each change of routes as a line with the arguments after the verb. Keywords may be
/// abbreviated.
const IP: &str = r#"#!/bin/sh
case "$*" in *"tcp_metrics flush"*) echo flush >> "$TOWPATH_SETTINGS/metrics" ;; esac
while [ $# -gt 0 ]; do
    case "$1" in
    r|ro|rou|rout|route)
        shift
        case "$1" in
        a|ad|add|ap|app|append|c|ch|cha|chan|chang|change|chg|rep|repl|replace|prepend)
            shift
            echo "add $*" >> "$TOWPATH_SETTINGS/routes" ;;
        d|de|del|delete)
            shift
            echo "del $*" >> "$TOWPATH_SETTINGS/routes" ;;
        f|fl|flush) echo flush >> "$TOWPATH_SETTINGS/routes" ;;
        esac
        exit 0 ;;
    -n|-net*|-f|-fam*) shift 2 ;;
    -*) shift ;;
    *) exit 0 ;;
    esac
done
exit 0
"#;

/// `tc`: records the limit of the queue, which may be 0, and whether it paces.
const TC: &str = r#"#!/bin/sh
case "$*" in
*" root fq"*) echo fq > "$TOWPATH_SETTINGS/qdisc" ;;
*" root "*) echo other > "$TOWPATH_SETTINGS/qdisc" ;;
esac
case "$*" in
*" delete "*|*" del "*) echo 1000 > "$TOWPATH_SETTINGS/queue" ;;
*"limit 0"*) echo 0 > "$TOWPATH_SETTINGS/queue" ;;
*" add "*|*" replace "*|*" change "*) echo 1000 > "$TOWPATH_SETTINGS/queue" ;;
esac
exit 0
"#;

/// `ethtool`: records which offloads are switched off or on.
const ETHTOOL: &str = r#"#!/bin/sh
echo "$*" >> "$TOWPATH_SETTINGS/offload"
exit 0
"#;

/// `nstat`: shows counters that changed since the last call.
const NSTAT: &str = r#"#!/bin/sh
counters="$TOWPATH_SETTINGS/counters"
seen="$TOWPATH_SETTINGS/counters.seen"
[ -e "$counters" ] || exit 0
while read -r name value; do
    before=$(sed -n "s/^$name //p" "$seen" 2>/dev/null)
    more=$((value - ${before:-0}))
    [ "$more" -eq 0 ] || echo "$name $more 0.0"
done < "$counters"
cp "$counters" "$seen"
exit 0
"#;

/// Files that all runs share.
pub(super) struct Stage {
    pub(super) folder: PathBuf,
    pub(super) settings: PathBuf,
    pub(super) commands: PathBuf,
    pub(super) towpath_script: PathBuf,
    pub(super) kernel_script: PathBuf,
}

impl Stage {
    /// Creates the files in `folder`.
    pub(super) fn make(folder: &Path) -> Result<Self, String> {
        let stage = Self {
            folder: folder.into(),
            settings: folder.join("settings"),
            commands: folder.join("commands"),
            towpath_script: folder.join("towpath.sh"),
            kernel_script: folder.join("kernel.sh"),
        };
        let made = stage.write();
        made.map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(stage)
    }

    fn write(&self) -> std::io::Result<()> {
        let defaults = self.folder.join("settings.defaults");
        fs::create_dir_all(&self.settings)?;
        fs::create_dir_all(&self.commands)?;
        if defaults.exists() {
            fs::remove_dir_all(&defaults)?;
        }
        fs::create_dir_all(defaults.join("ipv4"))?;
        for (name, value) in settings::IPV4 {
            fs::write(defaults.join("ipv4").join(name), format!("{value}\n"))?;
        }
        fs::write(&self.towpath_script, TOWPATH)?;
        fs::write(&self.kernel_script, KERNEL)?;
        for (name, text) in [("ip", IP), ("tc", TC), ("ethtool", ETHTOOL), ("nstat", NSTAT)] {
            let path = self.commands.join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }
}
