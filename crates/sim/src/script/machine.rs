//! The subject under test: sockets on a stack, on a wire without offload, in virtual time.

use super::subject::{LISTEN_PORT, REMOTE_MAC, REMOTE_PORT};
use super::{Call, Ends, Fd, Micros, Outcome, Subject, Value};
use crate::clock::Clock;
use crate::link::{self, received};
use crate::oracle;
use crate::scenario::{address, config};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use towpath_net::socket::{
    Error, Family, Linger, ReceiveFlags, SendFlags, Shutdown, SocketId, Sockets,
};
use towpath_net::stack::{Context, Stack};
use towpath_net::tcp::ecn::EcnUse;
use towpath_net::tcp::{FinWait, Settings};
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Caps, Ledger, Memory, MemoryConfig, Packet};

/// `MSG_OOB`, `MSG_PEEK`, `MSG_MORE` and `MSG_EOR`.
const MSG_OOB: i64 = 1;
const MSG_PEEK: i64 = 2;
const MSG_MORE: i64 = 0x8000;
const MSG_EOR: i64 = 0x80;

/// Sockets, stack, memory and clock of one script.
pub struct Machine {
    sockets: Sockets,
    memory: Memory,
    ledger: Ledger,
    clock: Clock,
    open: BTreeMap<Fd, SocketId>,
    /// Frames that left and were not taken yet.
    left: VecDeque<Vec<u8>>,
    v6: bool,
}

impl Machine {
    /// Makes a machine at the start of time, for a script that uses IPv6 or IPv4.
    pub fn new(v6: bool) -> Self {
        let memory = MemoryConfig { packets: 4096, small_frames: 4096, large_frames: 1024 };
        let mut stack = Stack::new(config(0, Settings::default()), Caps::plain(1500));
        for family in [false, true] {
            stack.set_neighbor(address(1, family), MacAddr(REMOTE_MAC));
        }
        Self {
            sockets: Sockets::new(stack),
            memory: Memory::new(memory),
            ledger: Ledger::new(),
            clock: Clock::default(),
            open: BTreeMap::new(),
            left: VecDeque::new(),
            v6,
        }
    }

    /// Packets, small and large frames that are still out: for the end of a script, when its
    /// sockets are closed.
    pub fn out_counts(&self) -> [usize; 3] {
        let memory = &self.memory;
        [memory.packets.out_count(), memory.small.out_count(), memory.large.out_count()]
    }

    fn at(&self) -> Instant {
        self.clock.now()
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut Sockets, &mut Context<'_>) -> R) -> R {
        let now = self.at();
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now };
        act(&mut self.sockets, &mut cx)
    }

    /// Transmits all pending packets, cut into segments.
    fn flush(&mut self) {
        let mut burst = Burst::new();
        loop {
            self.with(|sockets, cx| sockets.output(&mut burst, cx));
            if burst.is_empty() {
                return;
            }
            while let Some(packet) = burst.pop() {
                self.put(packet);
            }
        }
    }

    fn put(&mut self, packet: Packet) {
        let left = &mut self.left;
        let mut out = |packet: Packet| left.push_back(oracle::flatten(&packet));
        let (memory, ledger) = (&mut self.memory, &self.ledger);
        let cut = link::cut(packet, memory, ledger, &mut out);
        assert!(cut.is_ok(), "a stack makes packets that can be cut");
    }

    fn socket(
        &mut self,
        fd: Fd,
        call: impl FnOnce(&mut Self, SocketId) -> Result<i64, Error>,
    ) -> Outcome {
        let Some(id) = self.open.get(&fd).copied() else {
            return Outcome::Failed(Error::BadSocket.errno());
        };
        match call(self, id) {
            Ok(value) => Outcome::Done(value),
            Err(Error::WouldBlock | Error::InProgress | Error::Already) => Outcome::Blocked,
            Err(error) => Outcome::Failed(error.errno()),
        }
    }

    fn make(&mut self, fd: Fd) -> Outcome {
        let family = if self.v6 { Family::V6 } else { Family::V4 };
        match self.sockets.stream(family) {
            Ok(id) => {
                self.open.insert(fd, id);
                Outcome::Done(fd)
            }
            Err(error) => Outcome::Failed(error.errno()),
        }
    }

    fn read(&mut self, fd: Fd, flags: i64, data: &mut [u8]) -> Outcome {
        let (urgent, peek) = (flags & MSG_OOB != 0, flags & MSG_PEEK != 0);
        let flags = ReceiveFlags { peek, offset: 0 };
        self.socket(fd, |machine, id| {
            if urgent {
                let byte = machine.with(|sockets, cx| sockets.receive_urgent(id, peek, cx))?;
                data[..1].copy_from_slice(byte.as_slice());
                return Ok(1);
            }
            let count = machine.with(|sockets, cx| sockets.receive(id, data, flags, cx))?;
            Ok(count as i64)
        })
    }

    fn write(&mut self, fd: Fd, flags: i64, data: &[u8], fast_open: bool) -> Outcome {
        let (more, end_of_record) = (flags & MSG_MORE != 0, flags & MSG_EOR != 0);
        let urgent = flags & MSG_OOB != 0;
        let remote = self.ends(self.v6).remote;
        self.socket(fd, |machine, id| {
            if fast_open {
                let how = SendFlags { more, end_of_record, ..SendFlags::default() };
                let sent = machine
                    .with(|sockets, cx| sockets.send_with_syn(id, Some(remote), data, how, cx))?;
                match sent {
                    Some(0) => return Err(Error::InProgress),
                    Some(sent) => return Ok(sent as i64),
                    None => {}
                }
            }
            let mut sent = 0;
            while sent < data.len() || data.is_empty() {
                let flags = SendFlags { more, end_of_record, urgent, continues: sent > 0 };
                let rest = &data[sent..];
                match machine.with(|sockets, cx| sockets.send(id, &[rest], flags, cx)) {
                    Ok(0) => break,
                    Ok(count) => sent += count,
                    Err(_) if sent > 0 => break,
                    Err(error) => return Err(error),
                }
                if !urgent {
                    machine.flush();
                }
            }
            Ok(sent as i64)
        })
    }

    fn set_option(&mut self, fd: Fd, level: i64, name: i64, value: &Value) -> Outcome {
        let now = self.at();
        self.socket(fd, |machine, id| {
            let sockets = &mut machine.sockets;
            let on = matches!(value, Value::Number(number) if *number != 0);
            match (level, name, value) {
                (SOL_SOCKET, SO_REUSEADDR, _) => {
                    sockets.set_options(id, now, |options| options.reuse_address = on)?;
                }
                (SOL_SOCKET, SO_KEEPALIVE, _) => {
                    sockets.set_options(id, now, |options| options.keepalive = on)?;
                }
                (SOL_SOCKET, SO_OOBINLINE, _) => {
                    sockets.set_options(id, now, |options| options.urgent_inline = on)?;
                }
                (SOL_SOCKET, SO_SNDBUF, Value::Number(bytes)) => {
                    let bytes = u32::try_from(2 * *bytes).map_err(|_| Error::Invalid)?;
                    sockets.set_options(id, now, |options| options.send_buffer = Some(bytes))?;
                }
                (SOL_SOCKET, SO_RCVBUF, Value::Number(bytes)) => {
                    // Twice the size, for overhead, as on Linux.
                    let bytes = u32::try_from(2 * *bytes).map_err(|_| Error::Invalid)?;
                    sockets.set_options(id, now, |options| options.receive_buffer = Some(bytes))?;
                }
                (SOL_SOCKET, SO_LINGER, Value::Linger(on, seconds)) => {
                    let linger = match (*on, *seconds) {
                        (false, _) => Linger::Off,
                        (true, 0) => Linger::Reset,
                        (true, seconds) => Linger::Wait(Duration::from_secs(seconds.into())),
                    };
                    sockets.set_options(id, now, |options| options.linger = linger)?;
                }
                (IPPROTO_TCP, TCP_SYNCNT, Value::Number(count)) => {
                    let count = u8::try_from(*count).map_err(|_| Error::Invalid)?;
                    sockets.set_options(id, now, |options| options.syn_count = Some(count))?;
                }
                (IPPROTO_TCP, TCP_DEFER_ACCEPT, Value::Number(seconds)) => {
                    let seconds = i32::try_from(*seconds).map_err(|_| Error::Invalid)?;
                    sockets.set_options(id, now, |options| options.set_defer_accept(seconds))?;
                }
                (IPPROTO_TCP, TCP_LINGER2, Value::Number(seconds)) => {
                    let time = u64::try_from(*seconds).ok().map(Duration::from_secs);
                    let wait = time.map_or(FinWait::Never, FinWait::For);
                    sockets.set_options(id, now, |options| options.fin_wait = Some(wait))?;
                }
                (IPPROTO_TCP, TCP_NODELAY, _) => {
                    sockets.set_options(id, now, |options| options.nodelay = on)?;
                }
                _ => return Err(Error::NoSuchOption),
            }
            Ok(0)
        })
    }

    fn option(&mut self, fd: Fd, level: i64, name: i64) -> Outcome {
        let mut reported = 0;
        let outcome = self.socket(fd, |machine, id| {
            let sockets = &mut machine.sockets;
            reported = match (level, name) {
                (SOL_SOCKET, SO_ERROR) => {
                    sockets.take_error(id)?.map_or(0, |error| error.errno().into())
                }
                (IPPROTO_TCP, TCP_LINGER2) => match sockets.options(id)?.fin_wait {
                    Some(FinWait::For(time)) => time.as_secs() as i64,
                    Some(FinWait::Never) => -1,
                    None => return Err(Error::NoSuchOption),
                },
                (IPPROTO_TCP, TCP_DEFER_ACCEPT) => {
                    sockets.options(id)?.defer_accept_seconds().into()
                }
                _ => return Err(Error::NoSuchOption),
            };
            Ok(0)
        });
        if outcome == Outcome::Done(0) { Outcome::Reported(0, reported) } else { outcome }
    }

    fn accept(&mut self, listener: Fd, fd: Fd) -> Outcome {
        let now = self.at();
        self.socket(listener, |machine, id| {
            let (accepted, _) = machine.sockets.accept(id, now)?;
            machine.open.insert(fd, accepted);
            Ok(fd)
        })
    }
}

impl Subject for Machine {
    fn ends(&self, _: bool) -> Ends {
        Ends {
            local: SocketAddr::new(address(0, self.v6), LISTEN_PORT),
            remote: SocketAddr::new(address(1, self.v6), REMOTE_PORT),
            local_mac: [2, 0, 0, 0, 0, 1],
            remote_mac: REMOTE_MAC,
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number: Option<i64> = value.parse().ok();
        let settings = self.sockets.stack_mut().tcp_settings_mut();
        let (Some(name), Some(number)) = (name.strip_prefix("net.ipv4.tcp_"), number) else {
            return Err(format!("{name}={value} is not a known setting"));
        };
        let wrong = |_| format!("{number} is out of range");
        if name == "base_mss" {
            settings.base_mss = u32::try_from(number).map_err(wrong)?;
            return Ok(());
        }
        let small = u8::try_from(number).map_err(wrong)?;
        match name {
            "mtu_probing" => settings.mtu_probing = small,
            "sack" => settings.sack = small != 0,
            "dsack" => settings.dsack = small != 0,
            "timestamps" => settings.timestamps = small != 0,
            "window_scaling" => settings.window_scaling = small != 0,
            "syn_retries" => settings.syn_retries = small,
            "retries2" => settings.retries2 = small,
            "ecn" => {
                let ecn = EcnUse::from_setting(number);
                settings.ecn = ecn.map_err(|error| error.to_string())?;
            }
            other => return Err(format!("tcp_{other} is not a known setting")),
        }
        Ok(())
    }

    fn now(&self) -> Micros {
        (self.at() - Instant::START).as_micros() as Micros
    }

    fn run(&mut self, until: Micros) -> Option<(Micros, Vec<u8>)> {
        let until = Instant::START + Duration::from_micros(until);
        loop {
            self.flush();
            if let Some(frame) = self.left.pop_front() {
                return Some((self.now(), frame));
            }
            match self.sockets.next_deadline() {
                Some(next) if next <= until => self.clock.jump(next),
                _ => {
                    self.clock.jump(until);
                    return None;
                }
            }
            self.with(|sockets, cx| sockets.on_deadline(cx));
        }
    }

    fn inject(&mut self, frame: &[u8]) {
        let packet = received(frame, &mut self.memory).expect("enough memory");
        let mut burst = Burst::new();
        burst.push(packet).expect("it is empty");
        self.with(|sockets, cx| sockets.input(&mut burst, cx));
        self.flush();
    }

    fn call(&mut self, call: &Call, data: &mut [u8]) -> Outcome {
        let (now, ends) = (self.at(), self.ends(self.v6));
        let outcome = match call {
            Call::Socket { fd, .. } => self.make(*fd),
            Call::Bind(fd) => {
                self.socket(*fd, |machine, id| machine.sockets.bind(id, ends.local).map(|()| 0))
            }
            Call::Listen(fd, backlog) => self
                .socket(*fd, |machine, id| machine.sockets.listen(id, *backlog, now).map(|()| 0)),
            Call::Accept { listener, fd, .. } => self.accept(*listener, *fd),
            Call::Connect(fd) => self.socket(*fd, |machine, id| {
                machine.sockets.connect(id, ends.remote, now).map(|()| 0)
            }),
            Call::Read { fd, flags, .. } => self.read(*fd, *flags, data),
            Call::Write { fd, flags, .. } => self.write(*fd, *flags, data, call.connects()),
            Call::Shutdown(fd, how) => self.socket(*fd, |machine, id| {
                let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both].get(*how as usize);
                let how = *how.ok_or(Error::Invalid)?;
                machine.sockets.shutdown(id, how, now).map(|()| 0)
            }),
            Call::Close(fd) => {
                let outcome =
                    self.socket(*fd, |machine, id| machine.sockets.close(id, now).map(|()| 0));
                self.open.remove(fd);
                outcome
            }
            Call::SetOption { fd, level, name, value } => {
                self.set_option(*fd, *level, *name, value)
            }
            Call::GetOption { fd, level, name, .. } => self.option(*fd, *level, *name),
            Call::Poll { fd, events, .. } => {
                let Some(id) = self.open.get(fd) else {
                    return Outcome::Failed(Error::BadSocket.errno());
                };
                // POLLERR and POLLHUP are always reported.
                let ready = i64::from(self.sockets.readiness(*id).bits()) & (events | 0x18);
                Outcome::Reported(i64::from(ready != 0), ready)
            }
            Call::AtMark { fd, .. } => {
                let reported = self.open.get(fd).map(|id| self.sockets.is_at_mark(*id));
                reported.map_or(Outcome::Failed(Error::BadSocket.errno()), |at_mark| {
                    Outcome::Reported(0, at_mark.into())
                })
            }
            Call::SetNonblocking(..) | Call::GetFlags(_) => Outcome::Done(0),
        };
        self.flush();
        outcome
    }

    fn info(&mut self, fd: Fd, field: &str) -> Option<i64> {
        let info = self.sockets.tcp(*self.open.get(&fd)?)?.info(self.at());
        Some(match field {
            "tcpi_state" => info.state.into(),
            "tcpi_ca_state" => info.ca_state.into(),
            "tcpi_retransmits" => info.retransmits.into(),
            "tcpi_probes" => info.probes.into(),
            "tcpi_backoff" => info.backoff.into(),
            "tcpi_rto" => info.rto.into(),
            "tcpi_snd_mss" => info.snd_mss.into(),
            "tcpi_rcv_mss" => info.rcv_mss.into(),
            "tcpi_advmss" => info.advmss.into(),
            "tcpi_options" => info.options.into(),
            "tcpi_delivered" => info.delivered.into(),
            "tcpi_unacked" => info.unacked.into(),
            "tcpi_sacked" => info.sacked.into(),
            "tcpi_lost" => info.lost.into(),
            "tcpi_retrans" => info.retrans.into(),
            "tcpi_rtt" => info.rtt.into(),
            "tcpi_snd_cwnd" => info.snd_cwnd.into(),
            "tcpi_snd_ssthresh" => info.snd_ssthresh.into(),
            "tcpi_total_retrans" => info.total_retrans.into(),
            "tcpi_bytes_acked" => info.bytes_acked as i64,
            "tcpi_bytes_received" => info.bytes_received as i64,
            "tcpi_segs_in" => info.segs_in.into(),
            "tcpi_segs_out" => info.segs_out.into(),
            "tcpi_ato" => info.ato.into(),
            "tcpi_pmtu" => info.pmtu.into(),
            "tcpi_rttvar" => info.rttvar.into(),
            "tcpi_reordering" => info.reordering.into(),
            "tcpi_notsent_bytes" => info.notsent_bytes.into(),
            "tcpi_min_rtt" => info.min_rtt.into(),
            "tcpi_data_segs_in" => info.data_segs_in.into(),
            "tcpi_data_segs_out" => info.data_segs_out.into(),
            "tcpi_delivered_ce" => info.delivered_ce.into(),
            "tcpi_dsack_dups" => info.dsack_dups.into(),
            "tcpi_reord_seen" => info.reord_seen.into(),
            "tcpi_rcv_ooopack" => info.rcv_ooopack.into(),
            "tcpi_total_rto" => info.total_rto.into(),
            "tcpi_total_rto_recoveries" => info.total_rto_recoveries.into(),
            "tcpi_total_rto_time" => info.total_rto_time.into(),
            "tcpi_delivery_rate" => info.delivery_rate as i64,
            "tcpi_bytes_sent" => info.bytes_sent as i64,
            "tcpi_bytes_retrans" => info.bytes_retrans as i64,
            "tcpi_last_ack_sent" => 0,
            _ => return None,
        })
    }
}

const SOL_SOCKET: i64 = 1;
const SO_REUSEADDR: i64 = 2;
const SO_ERROR: i64 = 4;
const SO_KEEPALIVE: i64 = 9;
const SO_SNDBUF: i64 = 7;
const SO_RCVBUF: i64 = 8;
const SO_OOBINLINE: i64 = 10;
const SO_LINGER: i64 = 13;
const IPPROTO_TCP: i64 = 6;
const TCP_NODELAY: i64 = 1;
const TCP_SYNCNT: i64 = 7;
const TCP_LINGER2: i64 = 8;
const TCP_DEFER_ACCEPT: i64 = 9;
