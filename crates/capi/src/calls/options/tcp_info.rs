//! `struct tcp_info` in Linux's layout (`linux/tcp.h`).

use crate::instance::State;
use towpath::layers::net::socket::SocketId;
use towpath::layers::net::tcp::Info;

/// Bytes of the structure in Linux 6.18.
const LEN: usize = 280;
/// The state SYN-SENT as `tcpi_state`.
const SYN_SENT: u8 = 2;
/// The state CLOSE as `tcpi_state`.
const CLOSE: u8 = 7;
/// The state LISTEN as `tcpi_state`.
const LISTEN: u8 = 10;

/// Congestion window before a connection, in segments (RFC 6928).
const INITIAL_SEGMENTS: u32 = 10;
/// Initial degree of reordering, as in Linux.
const REORDERING: u32 = 3;

/// Bit of `tcpi_options`: the peer has accepted data in the SYN (`TCPI_OPT_SYN_DATA`).
const SYN_DATA: u8 = 32;

/// The structure for a socket. Unknown fields are zero.
pub(crate) fn bytes(state: &State, id: SocketId) -> Vec<u8> {
    let mut bytes = match state.engine.protocols.tcp(id) {
        Some(connection) => {
            let mut info = connection.info(state.now());
            info.options |= if connection.had_syn_data() { SYN_DATA } else { 0 };
            lay_out(&info)
        }
        None if state.engine.protocols.is_listening(id) => lay_out(&unconnected(LISTEN)),
        None if state.engine.protocols.is_deferred(id) => lay_out(&unconnected(SYN_SENT)),
        None => lay_out(&unconnected(CLOSE)),
    };
    bytes.resize(LEN, 0);
    bytes
}

/// The values for a socket without a connection, as in Linux.
fn unconnected(state: u8) -> Info {
    let common = Info {
        state,
        snd_cwnd: INITIAL_SEGMENTS,
        reordering: REORDERING,
        pacing_rate: u64::MAX,
        max_pacing_rate: u64::MAX,
        ..Info::default()
    };
    if state == LISTEN {
        return common;
    }
    Info {
        delivery_rate_app_limited: true,
        rto: 1_000_000,
        snd_mss: 536,
        rttvar: 250_000,
        snd_ssthresh: i32::MAX as u32,
        min_rtt: u32::MAX,
        ..common
    }
}

/// Numbers one after the other, in native byte order.
#[derive(Default)]
struct Layout(Vec<u8>);

impl Layout {
    fn u16(&mut self, numbers: &[u16]) {
        self.0.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
    }

    fn u32(&mut self, numbers: &[u32]) {
        self.0.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
    }

    fn u64(&mut self, numbers: &[u64]) {
        self.0.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
    }
}

/// The fields in the order of the structure. Fields without a value are zero.
fn lay_out(info: &Info) -> Vec<u8> {
    let mut layout = Layout::default();
    let scales = info.snd_wscale & 15 | info.rcv_wscale << 4;
    let counts = [info.state, info.ca_state, info.retransmits, info.probes, info.backoff];
    layout.0.extend(counts);
    let bits = u8::from(info.delivery_rate_app_limited) | info.fastopen_client_fail << 1;
    layout.0.extend([info.options, scales, bits]);
    layout.u32(&[info.rto, info.ato, info.snd_mss, info.rcv_mss]);
    layout.u32(&[info.unacked, info.sacked, info.lost, info.retrans, 0]);
    layout.u32(&[info.last_data_sent, 0, info.last_data_recv, info.last_ack_recv]);
    layout.u32(&[info.pmtu, info.rcv_ssthresh, info.rtt, info.rttvar]);
    layout.u32(&[info.snd_ssthresh, info.snd_cwnd, info.advmss, info.reordering]);
    layout.u32(&[info.rcv_rtt, info.rcv_space, info.total_retrans]);
    layout.u64(&[info.pacing_rate, info.max_pacing_rate]);
    layout.u64(&[info.bytes_acked, info.bytes_received]);
    layout.u32(&[info.segs_out, info.segs_in, info.notsent_bytes, info.min_rtt]);
    layout.u32(&[info.data_segs_in, info.data_segs_out]);
    layout.u64(&[info.delivery_rate, info.busy_time, info.rwnd_limited, info.sndbuf_limited]);
    layout.u32(&[info.delivered, info.delivered_ce]);
    layout.u64(&[info.bytes_sent, info.bytes_retrans]);
    layout.u32(&[info.dsack_dups, info.reord_seen, info.rcv_ooopack, info.snd_wnd, info.rcv_wnd]);
    layout.u32(&[0]);
    layout.u16(&[info.total_rto, info.total_rto_recoveries]);
    layout.u32(&[info.total_rto_time]);
    layout.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets are those of the C library's structure, as far as it goes.
    #[test]
    fn fields_are_where_linux_has_them() {
        let info = Info {
            state: 1,
            reordering: 10,
            total_retrans: 11,
            pacing_rate: 22,
            notsent_bytes: 33,
            sndbuf_limited: 44,
            rcv_wnd: 55,
            delivery_rate_app_limited: true,
            fastopen_client_fail: 3,
            delivery_rate: 66,
            delivered_ce: 77,
            total_rto_recoveries: 88,
            total_rto_time: 99,
            ..Info::default()
        };
        let bytes = lay_out(&info);
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"));
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"));
        assert_eq!(bytes[0], 1);
        assert_eq!((u32_at(88), u32_at(100), u64_at(104)), (10, 11, 22));
        assert_eq!((u32_at(144), u64_at(184), u32_at(232)), (33, 44, 55));
        assert_eq!((bytes[7], u64_at(160), u32_at(196)), (7, 66, 77));
        assert_eq!((u32_at(236), u32_at(240) >> 16, u32_at(244)), (0, 88, 99));
        assert!(bytes.len() <= LEN);
    }
}
