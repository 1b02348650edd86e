//! Loads for servers: carrier, file size, number of clients, requests per connection.

use std::sync::LazyLock;

use crate::cases::{Better, Case};

/// The path between clients and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    Process,
    Tap,
    Kernel,
}

/// Clients that repeatedly request a file.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) carrier: Carrier,
    /// Whether a connection carries more than one request.
    pub(super) is_kept: bool,
    pub(super) bytes: usize,
    pub(super) clients: u32,
    /// Requests per second, processor time per request, errors.
    pub(super) cases: [Case; 3],
}

pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    points().iter().flat_map(|point| &point.cases)
}

pub(super) fn points() -> &'static [Point] {
    static POINTS: LazyLock<Vec<Point>> = LazyLock::new(|| {
        let carriers = [Carrier::Process, Carrier::Tap, Carrier::Kernel];
        carriers.into_iter().flat_map(of).collect()
    });
    &POINTS
}

/// File sizes, smallest first.
pub(super) const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 10 << 20];

fn of(carrier: Carrier) -> impl Iterator<Item = Point> {
    [false, true].into_iter().flat_map(move |is_kept| {
        let small = [1, 10, CLIENTS, 1000].map(|clients| (SIZES[0], clients));
        let large = SIZES[1..].iter().map(|&bytes| (bytes, 10));
        let all = small.into_iter().chain(large);
        all.map(move |(bytes, clients)| Point::new(carrier, is_kept, bytes, clients))
    })
}

/// The default number of clients.
const CLIENTS: u32 = 100;

impl Point {
    fn new(carrier: Carrier, is_kept: bool, bytes: usize, clients: u32) -> Self {
        let carried = match carrier {
            Carrier::Process => "",
            Carrier::Tap => "tap_",
            Carrier::Kernel => "kernel_",
        };
        let kind = if is_kept { "keep_alive" } else { "connection_per_request" };
        let mut name = format!("{carried}http_{kind}");
        match bytes {
            4096 => {}
            1048576.. => name += &format!("_{}MiB", bytes >> 20),
            _ => name += &format!("_{}KiB", bytes >> 10),
        }
        if clients != CLIENTS {
            name += &format!("_{clients}");
        }
        let case = |name: String, unit, better| Case { name: name.into(), unit, better };
        let cases = [
            case(name.clone(), "requests/s", Better::High),
            case(format!("{name}_cpu"), "us/request", Better::Low),
            case(format!("{name}_errors"), "errors", Better::Low),
        ];
        Self { carrier, is_kept, bytes, clients, cases }
    }

    /// Path of the file in the URL.
    pub(super) fn path(&self) -> String {
        format!("/{}", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_what_is_not_usual() {
        let mut names: Vec<_> = all().map(|case| &*case.name).collect();
        for name in [
            "http_connection_per_request",
            "http_connection_per_request_1000_errors",
            "tap_http_keep_alive_64KiB_10",
            "http_connection_per_request_1MiB_10_cpu",
            "kernel_http_keep_alive_10MiB_10_cpu",
        ] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
