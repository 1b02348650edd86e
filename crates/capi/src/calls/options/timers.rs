//! Options of `IPPROTO_TCP` for times and counts of a connection's timers, and for the window
//! clamp, with Linux's bounds.

use crate::errno::{Errno, Outcome};
use towpath::layers::net::socket::Options;
use towpath::layers::net::tcp::{FinWait, Settings};
use towpath::layers::net::time::Duration;

/// Largest `TCP_KEEPIDLE` and `TCP_KEEPINTVL` in seconds, as in Linux.
const KEEPALIVE_SECONDS_MAX: i32 = 32_767;
/// Largest `TCP_KEEPCNT`, as in Linux.
const KEEPALIVE_PROBES_MAX: i32 = 127;
/// Largest `TCP_LINGER2` in seconds, as in Linux.
const LINGER2_SECONDS_MAX: i32 = 120;
/// Smallest `TCP_WINDOW_CLAMP`: half of the smallest receive buffer, as in Linux.
const WINDOW_CLAMP_LEAST: u32 = 1152;

/// A change that an option makes.
#[derive(Clone, Copy)]
pub(super) enum Change {
    KeepIdle(Duration),
    KeepInterval(Duration),
    KeepProbes(u8),
    UserTimeout(Option<Duration>),
    Linger2(Option<FinWait>),
    WindowClamp(Option<u32>),
}

impl Change {
    pub(super) fn apply(self, options: &mut Options) {
        match self {
            Change::KeepIdle(time) => options.keepalive_idle = Some(time),
            Change::KeepInterval(time) => options.keepalive_interval = Some(time),
            Change::KeepProbes(count) => options.keepalive_probes = Some(count),
            Change::UserTimeout(time) => options.user_timeout = time,
            Change::Linger2(time) => options.fin_wait = time,
            Change::WindowClamp(clamp) => options.window_clamp = clamp,
        }
    }
}

/// The change that an option makes. `None` for other options.
pub(super) fn change(name: i32, number: i32) -> Outcome<Option<Change>> {
    let within = |max: i32| match number {
        1.. if number <= max => Ok(number),
        _ => Err(Errno::INVAL),
    };
    let seconds = |number: i32| Duration::from_secs(number.max(0) as u64);
    Ok(Some(match name {
        libc::TCP_KEEPIDLE => Change::KeepIdle(seconds(within(KEEPALIVE_SECONDS_MAX)?)),
        libc::TCP_KEEPINTVL => Change::KeepInterval(seconds(within(KEEPALIVE_SECONDS_MAX)?)),
        libc::TCP_KEEPCNT => Change::KeepProbes(within(KEEPALIVE_PROBES_MAX)? as u8),
        libc::TCP_USER_TIMEOUT => {
            let millis = u64::try_from(number).map_err(|_| Errno::INVAL)?;
            Change::UserTimeout((millis > 0).then(|| Duration::from_millis(millis)))
        }
        libc::TCP_LINGER2 => {
            let time = seconds(number.min(LINGER2_SECONDS_MAX));
            Change::Linger2(match number {
                ..0 => Some(FinWait::Never),
                0 => None,
                1.. => Some(FinWait::For(time)),
            })
        }
        libc::TCP_WINDOW_CLAMP => {
            let clamp = u32::try_from(number).unwrap_or(0).max(WINDOW_CLAMP_LEAST);
            Change::WindowClamp((number != 0).then_some(clamp))
        }
        _ => return Ok(None),
    }))
}

/// The value of an option for a time or a count.
pub(super) fn value(name: i32, options: &Options, settings: &Settings) -> i32 {
    let seconds = |set: Option<Duration>, default: Duration| {
        i32::try_from(set.unwrap_or(default).as_secs()).unwrap_or(i32::MAX)
    };
    match name {
        libc::TCP_KEEPIDLE => seconds(options.keepalive_idle, settings.keepalive_idle),
        libc::TCP_KEEPINTVL => seconds(options.keepalive_interval, settings.keepalive_interval),
        libc::TCP_KEEPCNT => {
            i32::from(options.keepalive_probes.unwrap_or(settings.keepalive_probes))
        }
        libc::TCP_LINGER2 => match options.fin_wait.unwrap_or(settings.fin_wait) {
            FinWait::For(time) => seconds(None, time),
            FinWait::Never => -1,
        },
        _ => {
            let millis = options.user_timeout.map_or(0, |time| time.as_millis());
            i32::try_from(millis).unwrap_or(i32::MAX)
        }
    }
}
