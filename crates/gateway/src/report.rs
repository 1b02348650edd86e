//! Counters of a worker, for people and for tests.

use crate::egress::enforcer::Enforcer;
use crate::egress::meter::Metered;
use crate::egress::summary::{Bound, Summary};
use crate::flows::{Gateway, GatewayCounters, LentNow, LentToHost};
use crate::native::NativeCounters;
use std::fmt;
use std::time::Duration;
use towpath_io::tap::{Features, TapCounters};
use towpath_net::counters::Counters;
use towpath_net::stack::{Conflict, Stack};
use towpath_packet::{Ledger, Site};

/// How long to wait for the reports of all other workers; packets of the first worker wait as well.
pub const REPORT_PATIENCE: Duration = Duration::from_millis(100);

/// A copy of all counters at one moment.
#[derive(Clone, Debug)]
pub struct Report {
    /// Counters of the stack.
    pub stack: Counters,
    /// Counters of the gateway.
    pub gateway: GatewayCounters,
    /// Counters of the TAP device, if the inside is one.
    pub tap: TapCounters,
    /// Offloads in use, if the inside is a TAP device.
    pub features: Option<Features>,
    /// Open flows: TCP, UDP, echo.
    pub flows: (usize, usize, usize),
    /// Open joined flows, which bypass the stack: TCP.
    pub joined: usize,
    /// Open joined flows, which bypass the stack: UDP.
    pub joined_udp: usize,
    /// Counters of native sockets, if the program has them.
    pub native: Option<NativeCounters>,
    /// What the policy for flows has decided, if there is one.
    pub egress: Option<Summary>,
    /// Packet handles in use.
    pub packets_taken: usize,
    /// Frames in use, small and large: held by flows, or ready for the next read.
    pub frames_taken: (usize, usize),
    /// Memory that flows have lent: payload in frames on its way.
    pub lent: LentNow,
    /// Bytes of frames that the host's kernel has on loan.
    pub held_by_host: usize,
    /// Packets of guests that continued as copies, at the end of their term or because their ring
    /// ran short. Frames of the pool have no terms.
    pub recalled: u64,
    /// Payload bytes carried between the two sides.
    pub carried: u64,
    /// Payload bytes copied in user memory, by site.
    pub copied: [(&'static str, u64); Site::ALL.len()],
    /// Packets in the capture file, and packets that passed and are not, or not yet, in it.
    pub captured: Option<(u64, u64)>,
    /// Why the capture file ended early.
    pub capture_error: Option<String>,
    /// The host does not allow ping sockets.
    pub ping_forbidden: bool,
    /// Stations that have an address of the gateway, the last one of each address.
    pub conflicts: Vec<Conflict>,
    /// Packets handed over to other workers.
    pub handed_over: u64,
    /// Packets dropped because the owning worker's ring was full.
    pub hand_over_full: u64,
    /// Flows that workers took over from each other.
    pub flows_taken: u64,
    /// Times that another worker joined, because those before it were full.
    pub workers_joined: u64,
    /// Counters of each worker if there are several; empty if there is one.
    pub workers: Vec<WorkerShare>,
}

/// Counters of one of several workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerShare {
    /// It is parked: it serves no flows until those before it are full.
    pub parked: bool,
    /// Open flows: TCP, UDP, echo.
    pub flows: (usize, usize, usize),
    /// Packets that its stack received from the program.
    pub packets_in: u64,
    /// Packets that its stack sent to the program.
    pub packets_out: u64,
    /// Payload bytes from the program to the host.
    pub bytes_out: u64,
    /// Payload bytes from the host to the program.
    pub bytes_in: u64,
    /// Packets handed over to other workers.
    pub handed_over: u64,
    /// Flows taken over from other workers.
    pub flows_taken: u64,
}

impl Report {
    pub(crate) fn new(stack: &Stack, gateway: &Gateway, ledger: &Ledger) -> Self {
        Self {
            stack: stack.counters().clone(),
            gateway: *gateway.counters(),
            tap: TapCounters::default(),
            features: None,
            flows: gateway.flow_counts(),
            joined: gateway.joined_counts().0,
            joined_udp: gateway.joined_counts().1,
            native: None,
            egress: gateway.egress().map(|enforcer| Enforcer::summary(enforcer)),
            packets_taken: 0,
            frames_taken: (0, 0),
            lent: LentNow::default(),
            held_by_host: gateway.held_by_host(),
            recalled: 0,
            carried: ledger.carried(),
            copied: Site::ALL.map(|site| (site.name(), ledger.copied_at(site))),
            captured: None,
            capture_error: None,
            ping_forbidden: gateway.ping_is_forbidden(),
            conflicts: stack.conflicts().copied().collect(),
            handed_over: 0,
            hand_over_full: 0,
            flows_taken: 0,
            workers_joined: 0,
            workers: Vec::new(),
        }
    }

    /// Returns the number of outstanding loans: frames in use, including those that wait for the
    /// next read.
    pub fn loans(&self) -> usize {
        self.frames_taken.0 + self.frames_taken.1
    }

    /// Returns the sum of the reports of several workers; `first` is the first worker's. `serving`
    /// of the others serve, and those that have no report have never served.
    pub(crate) fn of_several(mut first: Self, others: &[Option<Self>], serving: usize) -> Self {
        let shares = others.iter().enumerate().map(|(index, other)| {
            let share = other.as_ref().map(Self::share).unwrap_or_default();
            WorkerShare { parked: index >= serving, ..share }
        });
        first.workers = [first.share()].into_iter().chain(shares).collect();
        for other in others.iter().flatten() {
            first.add(other);
        }
        first
    }

    fn share(&self) -> WorkerShare {
        WorkerShare {
            parked: false,
            flows: self.flows,
            packets_in: self.stack.packets_in,
            packets_out: self.stack.packets_out,
            bytes_out: self.gateway.bytes_out,
            bytes_in: self.gateway.bytes_in,
            handed_over: self.handed_over,
            flows_taken: self.flows_taken,
        }
    }

    fn add(&mut self, other: &Self) {
        self.stack.add(&other.stack);
        self.gateway.add(&other.gateway);
        self.tap = self.tap.plus(&other.tap);
        // An offload that one queue has switched off is not in use everywhere.
        self.features = self.features.zip(other.features).map(|(all, its)| all.and(its));
        let ((tcp, udp, echo), its) = (self.flows, other.flows);
        self.flows = (tcp + its.0, udp + its.1, echo + its.2);
        self.joined += other.joined;
        self.joined_udp += other.joined_udp;
        self.packets_taken += other.packets_taken;
        self.frames_taken.0 += other.frames_taken.0;
        self.frames_taken.1 += other.frames_taken.1;
        self.lent.bytes += other.lent.bytes;
        self.lent.oldest = self.lent.oldest.max(other.lent.oldest);
        self.held_by_host += other.held_by_host;
        self.recalled += other.recalled;
        self.carried += other.carried;
        for ((_, bytes), (_, more)) in self.copied.iter_mut().zip(&other.copied) {
            *bytes += more;
        }
        self.conflicts.extend(&other.conflicts);
        self.handed_over += other.handed_over;
        self.hand_over_full += other.hand_over_full;
        self.flows_taken += other.flows_taken;
        self.workers_joined += other.workers_joined;
    }

    /// Payload bytes copied in user memory.
    pub fn copied_bytes(&self) -> u64 {
        self.copied.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Payload bytes copied in user memory per byte carried.
    pub fn copies_per_byte(&self) -> f64 {
        if self.carried == 0 { 0.0 } else { self.copied_bytes() as f64 / self.carried as f64 }
    }

    /// Fraction of the carried bytes that were passed on in the frames that received them. It is 1
    /// before the first byte, and a lower bound, as bytes may be copied twice.
    pub fn hit_rate(&self) -> f64 {
        1.0 - self.copies_per_byte().min(1.0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stack, gateway) = (&self.stack, &self.gateway);
        let (mut reads, mut writes) = (String::new(), String::new());
        if let Some(features) = self.features {
            writeln!(f, "offload           {features}")?;
            reads = format!(", {} reads", self.tap.received.calls);
            writes = format!(", {} writes", self.tap.transmitted.calls);
        }
        writeln!(
            f,
            "from the program  {} packets, {} super-packets, {} bytes{reads}",
            stack.packets_in, stack.super_packets_in, stack.bytes_in
        )?;
        writeln!(
            f,
            "to the program    {} packets, {} super-packets, {} bytes{writes}",
            stack.packets_out, stack.super_packets_out, stack.bytes_out
        )?;
        writeln!(
            f,
            "payload           {} bytes out, {} bytes in, {:.6} copies per byte",
            gateway.bytes_out,
            gateway.bytes_in,
            self.copies_per_byte()
        )?;
        let (tcp, udp, echo) = self.flows;
        writeln!(
            f,
            "flows             tcp {tcp} now, {} out, {} in, {} refused; udp {udp} now, {} in \
             all; echo {echo} now, {} requests",
            gateway.tcp_out, gateway.tcp_in, gateway.tcp_refused, gateway.udp, gateway.echo
        )?;
        self.fmt_others(f)?;
        writeln!(
            f,
            "lent              {} bytes now, the oldest for {} ms, {:.6} of all passed uncopied",
            self.lent.bytes,
            self.lent.oldest.unwrap_or_default().as_millis(),
            self.hit_rate()
        )?;
        writeln!(
            f,
            "memory            {} packets, {} frames taken",
            self.packets_taken,
            self.frames_taken.0 + self.frames_taken.1
        )?;
        self.fmt_workers(f)?;
        writeln!(
            f,
            "retransmitted     {}, {} of them loss probes",
            stack.retransmitted, stack.tail_probes
        )?;
        if stack.orphans_reset > 0 {
            writeln!(f, "orphans reset     {}", stack.orphans_reset)?;
        }
        if stack.syn_cookies_sent > 0 {
            writeln!(
                f,
                "syn cookies       {} sent, {} received, {} invalid",
                stack.syn_cookies_sent, stack.syn_cookies_received, stack.syn_cookies_failed
            )?;
        }
        for conflict in &self.conflicts {
            writeln!(f, "conflict          {conflict}, {} messages", conflict.count)?;
        }
        if let Some((written, missed)) = self.captured {
            let error = self.capture_error.iter().map(|error| format!("; {error}"));
            let error: String = error.collect();
            writeln!(f, "captured          {written} packets, {missed} missed{error}")?;
        }
        self.fmt_losses(f)
    }
}

impl Report {
    /// Writes the lines of flows that bypass the stack, and of what was lent to the host's kernel,
    /// if there was any.
    fn fmt_others(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gateway = &self.gateway;
        let (out, into) = (gateway.joined_bytes_out, gateway.joined_bytes_in);
        if gateway.joined + gateway.joined_udp > 0 {
            writeln!(
                f,
                "joined            {} now, {} in all, {} refused; {out} bytes out, {into} bytes in \
                 past the stack",
                self.joined, gateway.joined, gateway.joined_refused
            )?;
        }
        if gateway.joined_udp > 0 {
            writeln!(
                f,
                "joined udp        {} now, {} in all, {} datagrams refused",
                self.joined_udp, gateway.joined_udp, gateway.joined_udp_refused
            )?;
        }
        self.fmt_native(f)?;
        self.fmt_egress(f)?;
        self.fmt_lent_to_host(f)
    }

    /// Writes the lines of the policy, if there is one.
    fn fmt_egress(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(summary) = &self.egress else { return Ok(()) };
        let Summary { generation, counters, by_rule, by_ports, bounds } = summary;
        writeln!(
            f,
            "egress            {} allowed, {} denied, {} questions and {} answers refused; policy \
             {generation}, {} records lost",
            counters.allowed,
            counters.denied,
            counters.questions_refused,
            counters.answers_refused,
            counters.audit_lost
        )?;
        for (id, [allowed, denied]) in by_rule.iter().filter(|(_, counts)| *counts != [0; 2]) {
            writeln!(f, "egress rule       {id}: {allowed} allowed, {denied} denied")?;
        }
        for (port, by_rule) in by_ports {
            for (id, [allowed, denied]) in by_rule.iter().filter(|(_, counts)| *counts != [0; 2]) {
                writeln!(f, "egress of {port}  {id}: {allowed} allowed, {denied} denied")?;
            }
        }
        for Bound { port, id, done } in bounds {
            let Metered { delayed_bytes, dropped, over_quota } = done;
            let of_port = port.as_ref().map_or_else(String::new, |port| format!("{port}: "));
            writeln!(
                f,
                "egress bound      {of_port}{id}: {delayed_bytes} bytes delayed, {dropped} \
                 datagrams dropped, {over_quota} flows beyond the quota"
            )?;
        }
        Ok(())
    }

    /// Writes the lines of native sockets, if the program has them.
    fn fmt_native(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(native) = &self.native else { return Ok(()) };
        let NativeCounters { begun, refused, open, bytes_out, bytes_in, .. } = *native;
        writeln!(
            f,
            "native            {open} now, {begun} in all, {refused} refused; {bytes_out} bytes \
             out, {bytes_in} bytes in past the interface"
        )?;
        if native.listeners > 0 {
            writeln!(f, "native            {} listeners", native.listeners)?;
        }
        if native.denied > 0 {
            writeln!(f, "native denied     {} by the policy", native.denied)?;
        }
        if native.ended > 0 {
            writeln!(f, "native ended      {} on request or by a new policy", native.ended)?;
        }
        for (why, count) in native.interface().filter(|(_, count)| *count > 0) {
            writeln!(f, "not native        {why} {count}")?;
        }
        Ok(())
    }

    /// Writes the line of what was lent to the host's kernel, if flows tried to lend anything.
    fn fmt_lent_to_host(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LentToHost { bytes, calls, copied, refused } = self.gateway.lent;
        if calls + refused == 0 {
            return Ok(());
        }
        writeln!(
            f,
            "lent to the host  {bytes} bytes in {calls} calls, {copied} of them copied after all, \
             {refused} refused; {} bytes of frames now",
            self.held_by_host
        )
    }

    /// Writes one line for each of several workers.
    fn fmt_workers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, share) in self.workers.iter().enumerate() {
            let WorkerShare { flows: (tcp, udp, echo), .. } = *share;
            let parked = if share.parked { "; parked" } else { "" };
            writeln!(
                f,
                "worker {index}          {} bytes out, {} bytes in, {} packets handed over, {} \
                 flows taken over; now tcp {tcp}, udp {udp}, echo {echo}{parked}",
                share.bytes_out, share.bytes_in, share.handed_over, share.flows_taken
            )?;
        }
        Ok(())
    }

    /// Writes everything that was lost, by reason; writes nothing without losses.
    fn fmt_losses(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (site, bytes) in self.copied.iter().filter(|(_, bytes)| *bytes > 0) {
            writeln!(f, "copied            {site} {bytes} bytes")?;
        }
        for (name, count) in self.losses() {
            writeln!(f, "dropped           {name} {count}")?;
        }
        Ok(())
    }

    /// Returns what was lost, by reason, without the reasons whose count is zero.
    pub fn losses(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let gateway = &self.gateway;
        let others = [
            ("tap_receive", self.tap.receive_dropped()),
            ("tap_transmit", self.tap.transmit_dropped()),
            ("connection_displaced", gateway.connections_displaced),
            ("message_displaced", gateway.messages_displaced),
            ("udp_host", gateway.udp_dropped),
            ("udp_refused", gateway.udp_refused),
            ("udp_filtered", gateway.udp_filtered),
            ("udp_nobody", gateway.udp_nobody),
            ("udp_no_memory", gateway.udp_no_memory),
            ("over_bandwidth", gateway.over_bandwidth),
            ("over_quota", gateway.over_quota),
            ("multicast_filtered", gateway.multicast_filtered),
            ("multicast_limited", gateway.multicast_limited),
            ("udp_peer_evicted", gateway.peers_evicted),
            ("question_not_kept", gateway.questions_not_kept),
            ("echo_forbidden", gateway.echo_forbidden),
            ("no_descriptor", gateway.no_descriptor),
            ("flow_evicted", gateway.evicted),
            ("hand_over_full", self.hand_over_full),
        ];
        let others = others.into_iter().filter(|(_, count)| *count > 0);
        self.stack.drops().map(|(reason, count)| (reason.name(), count)).chain(others)
    }
}
