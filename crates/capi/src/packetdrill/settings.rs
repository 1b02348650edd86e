//! Settings of scripts: a folder that stands for `/proc/sys/net`.
//!
//! `FOLDER/ipv4` contains a plain file for each setting, with the name and the format of Linux. The
//! settings are read again when inotify reports that a file was written.

use super::routes;
use crate::instance::State;
use crate::wire::wire_caps;
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};
use towpath::layers::net::counters::DropReason;
use towpath::layers::net::tcp::congestion::Kind;
use towpath::layers::net::tcp::ecn::EcnUse;
use towpath::layers::net::tcp::fastopen::FastOpenKeys;
use towpath::layers::net::tcp::{FinWait, Settings};
use towpath::layers::packet::Caps;

/// A folder of settings.
pub(super) struct Folder {
    path: PathBuf,
    watch: OwnedFd,
    first: bool,
    /// Length of a file that grows by one line with each request to forget data about peers.
    forgotten: u64,
    /// Count of ICMP errors outside the window that was last written for `nstat`.
    reported: u64,
}

impl Folder {
    /// Watches a folder.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        for folder in ["", "ipv4"] {
            let _ = inotify::add_watch(
                &watch,
                path.join(folder),
                WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::CLOSE_WRITE,
            )?;
        }
        Ok(Self { path, watch, first: true, forgotten: 0, reported: 0 })
    }

    /// True at first, and if a file was written since the last call.
    pub(super) fn has_changed(&mut self) -> bool {
        let mut changed = std::mem::take(&mut self.first);
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 4096];
        let mut news = inotify::Reader::new(&self.watch, &mut buffer);
        while news.next().is_ok() {
            changed = true;
        }
        changed
    }

    /// Reads and applies all settings. Fails at the first one whose value means nothing here: a
    /// script would otherwise test something else than it says.
    pub(super) fn apply(&mut self, state: &mut State) -> Result<(), String> {
        let stack = state.engine.protocols.stack_mut();
        let forgotten = fs::metadata(self.path.join("metrics")).map_or(0, |file| file.len());
        if forgotten > std::mem::replace(&mut self.forgotten, forgotten) {
            stack.forget_peers();
        }
        self.read_tcp(stack.tcp_settings_mut())?;
        self.read("tcp_max_orphans", |value| stack.set_orphans_max(limited(value) as usize));
        let text = fs::read_to_string(self.path.join("routes")).unwrap_or_default();
        let routes = stack.set_routes(&routes::read(&text));
        routes.map_err(|problem| format!("routes: {problem}"))?;
        let offload = fs::read_to_string(self.path.join("offload")).unwrap_or_default();
        let cuts = !offload.contains("tso off");
        let caps = Caps { tso4: cuts, tso6: cuts, ..wire_caps(stack.mtu()) };
        stack.set_caps(caps);
        if let Some(wire) = &state.wire {
            // The stack follows the wire's capabilities after each turn.
            wire.set_caps(caps);
        }
        let limit = fs::read_to_string(self.path.join("queue")).unwrap_or_default();
        stack.set_stopped(limit.trim() == "0");
        Ok(())
    }

    /// Writes the counters that `nstat` shows, if they have changed.
    pub(super) fn tell(&mut self, state: &State) {
        let count = state.engine.protocols.stack().counters().dropped(DropReason::IcmpOutOfWindow);
        if count != self.reported {
            self.reported = count;
            let text = format!("TcpExtOutOfWindowIcmps {count}\n");
            // If the file is missing, the script does not find the counter and reports that.
            let _ = fs::write(self.path.join("counters"), text);
        }
    }

    fn read_tcp(&self, settings: &mut Settings) -> Result<(), String> {
        if let [_, default, max] = self.numbers("tcp_rmem")[..] {
            settings.receive_buffer = limited(default);
            settings.receive_buffer_max = limited(max);
        }
        if let [_, default, max] = self.numbers("tcp_wmem")[..] {
            settings.send_buffer = limited(default);
            settings.send_buffer_max = limited(max);
        }
        self.read("tcp_timestamps", |value| settings.timestamps = value != 0);
        self.read("tcp_sack", |value| settings.sack = value != 0);
        self.read("tcp_dsack", |value| settings.dsack = value != 0);
        self.read("tcp_window_scaling", |value| settings.window_scaling = value != 0);
        self.read("tcp_syn_retries", |value| settings.syn_retries = small(value));
        self.read("tcp_synack_retries", |value| settings.synack_retries = small(value));
        self.read("tcp_syn_linear_timeouts", |value| settings.syn_linear_timeouts = small(value));
        self.read("tcp_syncookies", |value| settings.syncookies = small(value));
        self.read("tcp_abort_on_overflow", |value| settings.abort_on_overflow = value != 0);
        self.read("tcp_retries2", |value| settings.retries2 = small(value));
        self.read("tcp_reordering", |value| settings.reordering = limited(value));
        self.read("tcp_frto", |value| settings.frto = small(value));
        self.read("tcp_early_retrans", |value| settings.early_retrans = small(value));
        self.read("tcp_recovery", |value| settings.recovery = small(value));
        if let Some(value) = self.number("tcp_ecn") {
            settings.ecn = EcnUse::from_setting(value).map_err(|error| error.to_string())?;
        }
        self.read("tcp_ecn_fallback", |value| settings.ecn_fallback = value != 0);
        self.read("tcp_slow_start_after_idle", |value| {
            settings.slow_start_after_idle = value != 0;
        });
        self.read("tcp_keepalive_time", |value| settings.keepalive_idle = seconds(value));
        self.read("tcp_keepalive_intvl", |value| settings.keepalive_interval = seconds(value));
        self.read("tcp_keepalive_probes", |value| settings.keepalive_probes = small(value));
        self.read("tcp_fin_timeout", |value| settings.fin_wait = FinWait::For(seconds(value)));
        self.read("tcp_fastopen", |value| settings.fastopen = limited(value));
        self.read("tcp_fastopen_blackhole_timeout_sec", |value| {
            settings.fastopen_blackhole_timeout_sec = limited(value);
        });
        self.read("tcp_invalid_ratelimit", |value| settings.invalid_ratelimit = millis(value));
        self.read("tcp_challenge_ack_limit", |value| {
            settings.challenge_ack_limit = limited(value);
        });
        self.read("tcp_retries1", |value| settings.retries1 = small(value));
        self.read("tcp_rto_min_us", |value| settings.rto_min = micros(value));
        self.read("tcp_rto_max_ms", |value| settings.rto_max = millis(value));
        self.read("tcp_mtu_probing", |value| settings.mtu_probing = small(value));
        self.read("tcp_base_mss", |value| settings.base_mss = limited(value));
        self.read("tcp_mtu_probe_floor", |value| settings.mtu_probe_floor = limited(value));
        self.read("tcp_probe_threshold", |value| settings.probe_threshold = limited(value));
        self.read("tcp_probe_interval", |value| settings.probe_interval = seconds(value));
        self.read("tcp_min_tso_segs", |value| settings.min_tso_segs = limited(value));
        self.read("tcp_tso_win_divisor", |value| settings.tso_win_divisor = limited(value));
        self.read("tcp_notsent_lowat", |value| settings.notsent_lowat = limited(value));
        self.read("tcp_pacing_ss_ratio", |value| settings.pacing_ss_ratio = limited(value));
        self.read("tcp_pacing_ca_ratio", |value| settings.pacing_ca_ratio = limited(value));
        let discipline = fs::read_to_string(self.path.join("qdisc")).unwrap_or_default();
        // The only queueing discipline that follows the pacing rates of sockets.
        settings.pacing = discipline.trim() == "fq";
        if let [word] = &self.words("tcp_fastopen_key")[..] {
            settings.fastopen_key = fastopen_keys(word).ok_or_else(|| {
                format!("tcp_fastopen_key is {word}, but must be one or two keys of four words")
            })?;
        }
        if let [word] = &self.words("tcp_congestion_control")[..] {
            settings.congestion = Kind::from_name(word).ok_or_else(|| {
                let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
                let names = names.join(", ");
                format!("tcp_congestion_control is {word}, but must be one of {names}")
            })?;
        }
        Ok(())
    }

    /// The words of a setting.
    fn words(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path.join("ipv4").join(name));
        text.unwrap_or_default().split_ascii_whitespace().map(String::from).collect()
    }

    /// The numbers of a setting, in decimal or in hexadecimal with `0x`.
    fn numbers(&self, name: &str) -> Vec<i64> {
        let number = |word: &String| match word.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        self.words(name).iter().filter_map(number).collect()
    }

    /// The first number of a setting, if the setting exists.
    fn number(&self, name: &str) -> Option<i64> {
        self.numbers(name).first().copied()
    }

    /// Passes a setting of one number to `set`, if the setting exists.
    fn read(&self, name: &str, set: impl FnOnce(i64)) {
        if let Some(value) = self.number(name) {
            set(value);
        }
    }
}

fn limited(value: i64) -> u32 {
    u32::try_from(value.max(0)).unwrap_or(u32::MAX)
}

fn small(value: i64) -> u8 {
    u8::try_from(value.max(0)).unwrap_or(u8::MAX)
}

fn micros(value: i64) -> Duration {
    Duration::from_micros(value.max(0) as u64)
}

fn millis(value: i64) -> Duration {
    Duration::from_millis(value.max(0) as u64)
}

fn seconds(value: i64) -> Duration {
    Duration::from_secs(value.max(0) as u64)
}

/// Parses one or two keys, separated by a comma, each four hexadecimal words of 32 bits.
fn fastopen_keys(text: &str) -> Option<FastOpenKeys> {
    let key = |text: &str| {
        let mut bytes = [0; 16];
        let mut words = text.split('-');
        for place in bytes.chunks_exact_mut(4) {
            let word = u32::from_str_radix(words.next()?, 16).ok()?;
            place.copy_from_slice(&word.to_le_bytes());
        }
        words.next().is_none().then_some(bytes)
    };
    Some(match text.split_once(',') {
        Some((primary, backup)) => {
            FastOpenKeys { primary: key(primary)?, backup: Some(key(backup)?) }
        }
        None => FastOpenKeys { primary: key(text)?, backup: None },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with one setting, and what reading it gives.
    fn read(name: &str, value: &str) -> Result<Settings, String> {
        let path = std::env::temp_dir().join(format!("towpath-settings-{}", std::process::id()));
        let path = path.join(format!("{name}-{value}"));
        fs::create_dir_all(path.join("ipv4")).expect("a folder");
        fs::write(path.join("ipv4").join(name), format!("{value}\n")).expect("a setting");
        let folder = Folder::open(path.clone()).expect("inotify");
        let mut settings = Settings::default();
        let result = folder.read_tcp(&mut settings).map(|()| settings);
        fs::remove_dir_all(path).expect("the folder is removed");
        result
    }

    #[test]
    fn values_that_mean_nothing_are_refused() {
        let problem = |name, value| read(name, value).expect_err(value);
        for value in ["-1", "3", "4", "5"] {
            let expected = format!("tcp_ecn is {value}, but must be 0 (off), 1 (request");
            let text = problem("tcp_ecn", value);
            assert!(text.starts_with(&expected) && text.contains("RFC 9768"), "{text}");
        }
        let text = problem("tcp_congestion_control", "vegas");
        assert_eq!(text, "tcp_congestion_control is vegas, but must be one of reno, cubic, bbr");
        assert!(problem("tcp_fastopen_key", "1-2-3").starts_with("tcp_fastopen_key is 1-2-3,"));
    }

    #[test]
    fn known_values_are_taken() {
        let settings = |name, value| read(name, value).expect(value);
        assert_eq!(settings("tcp_ecn", "1").ecn, EcnUse::Request);
        assert_eq!(settings("tcp_ecn", "2").ecn, EcnUse::Accept);
        assert_eq!(settings("tcp_rto_max_ms", "2000").rto_max, Duration::from_secs(2));
        assert_eq!(settings("tcp_congestion_control", "bbr").congestion, Kind::Bbr);
    }
}
