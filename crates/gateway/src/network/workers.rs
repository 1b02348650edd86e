//! Changes the number of workers while the network runs.
//!
//! # Theory of operation
//!
//! The first worker makes everything for the new number: rings, helpers with their memory, and
//! threads, which wait. Then it borrows the present helpers from their threads, each between two
//! turns. So every packet is in a ring, in a queue or in a device, and only this thread can move
//! it. The first worker empties the rings, moves ports to their new workers, and lets the new
//! threads begin. The former ones end.
//!
//! All that can fail comes before the first port moves. If something fails, the present helpers
//! serve on, and nothing has changed.

use std::io;

use towpath_io::thread::release_unused;
use towpath_net::switch::PORTS_MAX;
use towpath_packet::{Context, Memory, MemoryConfig, NoMemory};

use super::Network;
use super::crew::Crew;
use super::gateway_port::GatewayPort;
use super::member::Member;
use super::port::Port;
use super::ports::Ports;
use crate::config::{ConfigError, shares};
use crate::worker::Worker;

/// Why the number of workers was not changed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum WorkersError {
    /// The number is out of range, or the memory is too little for so many.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is not enough memory.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// A worker does not answer, or a system call failed, such as one that starts a thread.
    #[error("cannot change the number of workers: {0}")]
    Os(#[from] io::Error),
}

/// A port that moves from one worker to another, or to a new one of the same number.
struct Move {
    index: usize,
    from: usize,
    to: usize,
}

impl Network {
    /// Changes the number of workers while packets flow. Ports move so that each worker has the
    /// same number of them, up to one; the gateway counts as a port of the first. No packet is lost
    /// or reordered. All workers pause meanwhile: guests' packets wait in their devices.
    ///
    /// `cx.memory` is replaced, as each worker gets its part of the memory. What is in use of the
    /// former memory stays valid, and comes in addition until it is returned.
    ///
    /// # Errors
    /// [`WorkersError`]; nothing was changed.
    pub fn change_workers(
        &mut self,
        count: usize,
        cx: &mut Context<'_>,
    ) -> Result<(), WorkersError> {
        let bytes = *self.memory_bytes.get_or_insert(cx.memory.capacity_bytes());
        shares::check(bytes, count)?;
        if count == self.worker_count() {
            return Ok(());
        }
        let memory = Memory::try_new(MemoryConfig::within(shares::of_first(bytes, count)))?;
        let mut next = self.new_crew(count, shares::of_other(bytes, count))?;
        if let (Some(next), Some(clock)) = (&mut next, &self.clock) {
            next.hire(clock)?;
        }
        if let Some(crew) = &mut self.crew {
            crew.pause()?;
        }
        let moves = self.moves(count);
        if let Err(error) = self.await_ports(&moves, next.as_mut()) {
            self.forgo_ports(&moves, next.as_ref());
            self.crew.iter_mut().for_each(Crew::begin);
            return Err(error.into());
        }
        self.empty_rings(cx);
        self.move_ports(&moves, next.as_mut());
        let former = std::mem::replace(&mut self.crew, next);
        let mut former_memory = std::mem::replace(cx.memory, memory);
        // Reports list the ports of a new worker that does not answer at first. Now all answer.
        drop(self.other_reports());
        self.crew.iter_mut().for_each(Crew::begin);
        // Packets flow again; its threads end.
        drop(former);
        former_memory.unused(release_unused);
        Ok(())
    }

    /// Returns which ports move if there are `count` workers. Those of other workers than the first
    /// get a new one in any case, and tunnels stay at the first.
    fn moves(&self, count: usize) -> Vec<Move> {
        let may_move = |member: &&Member| !member.attachment.is_tunnel();
        let members = || self.members.iter().flatten().filter(may_move);
        let before: Vec<usize> = members().map(|member| member.worker).collect();
        let after = place(&before, count, self.has_gateway());
        let moves = members().zip(after).map(|(member, to)| Move {
            index: member.id.index(),
            from: member.worker,
            to,
        });
        moves.filter(|one| (one.from, one.to) != (0, 0)).collect()
    }

    /// Watches the files of ports at the workers that they move to, and the bell of the new
    /// workers.
    fn await_ports(&mut self, moves: &[Move], mut next: Option<&mut Crew>) -> io::Result<()> {
        // News of the present workers is about ports where they are now.
        self.hear_news()?;
        let Self { ports, crew, .. } = self;
        if let Some(next) = &next {
            ports.watch(next.bell())?;
        }
        for Move { index, from, to } in moves {
            let port = port_of(ports, crew, *from, *index);
            match &mut next {
                Some(next) if *to > 0 => next.idle(*to).ports().await_port(*index, port)?,
                _ => ports.await_port(*index, port)?,
            }
        }
        Ok(())
    }

    /// Takes back [`Network::await_ports`] at this worker. The new workers are not used.
    fn forgo_ports(&mut self, moves: &[Move], next: Option<&Crew>) {
        let Self { ports, crew, .. } = self;
        next.iter().for_each(|next| ports.unwatch(next.bell()));
        for Move { index, from, .. } in moves.iter().filter(|one| one.to == 0) {
            ports.forgo_port(port_of(ports, crew, *from, *index));
        }
    }

    /// Does what all workers ask of each other, while none but this one serves.
    fn empty_rings(&mut self, cx: &mut Context<'_>) {
        self.deliver_for_others(cx);
        // Their rings have room now.
        self.take_packets(cx);
        self.deliver_for_others(cx);
    }

    fn deliver_for_others(&mut self, cx: &Context<'_>) {
        let crew = self.crew.iter_mut();
        crew.flat_map(Crew::all_idle).for_each(|helper| helper.take_packets(cx.now));
    }

    /// Moves ports, and all that the present workers know about them. No packet is in a ring.
    fn move_ports(&mut self, moves: &[Move], mut next: Option<&mut Crew>) {
        let Self { members, ports, switch, gateway, crew, .. } = self;
        let waiting = gateway.as_ref().map_or([0; PORTS_MAX], GatewayPort::waiting_of_ports);
        for Move { index, from, to } in moves {
            let taken = match crew {
                Some(crew) if *from > 0 => crew.idle(*from).ports().remove(*index),
                _ => ports.remove(*index),
            };
            let mut port = taken.expect("it was found there before");
            // What it keeps ready is in the memory of its former worker.
            port.rest();
            port.take_over(waiting[*index]);
            match &mut next {
                Some(next) if *to > 0 => next.idle(*to).ports().put(*index, port),
                _ => ports.put(*index, port),
            }
            members[*index].as_mut().expect("a port has a member").worker = *to;
        }
        ports.rest();
        for member in members.iter().flatten() {
            let index = member.id.index();
            if let Some(next) = &next {
                next.links.set_worker(index, member.worker, waiting[index]);
            }
        }
        let ids: Vec<_> = switch.ports().collect();
        for helper in crew.iter_mut().flat_map(Crew::all_idle) {
            for id in &ids {
                if let Some(counters) = helper.take_counters(*id) {
                    switch.add_counters(*id, &counters);
                }
            }
        }
        // Nothing is left of ports that were removed before.
        switch.release_numbers(switch.generation());
        self.has_numbers_to_release = false;
        crew.iter().for_each(|crew| ports.unwatch(crew.bell()));
    }
}

impl Worker<Network> {
    /// Changes the number of workers; see [`Network::change_workers`].
    pub(super) fn change_workers(&mut self, count: usize) -> Result<(), WorkersError> {
        // What is kept ready is in the memory that is replaced.
        self.give_back();
        self.with_inside(|network, cx| network.change_workers(count, cx))
    }
}

/// Returns a port that a worker has; `crew` is not serving.
fn port_of<'a>(
    ports: &'a Ports,
    crew: &'a mut Option<Crew>,
    worker: usize,
    index: usize,
) -> &'a Port {
    let port = match crew {
        Some(crew) if worker > 0 => crew.idle(worker).ports().get(index),
        _ => ports.get(index),
    };
    port.expect("a port is where its member says")
}

/// Returns the workers of ports if there are `count` workers, from those `before`. As few ports
/// move as are needed so that no worker has two ports more than another one. The gateway counts as
/// a port of the first worker.
fn place(before: &[usize], count: usize, has_gateway: bool) -> Vec<usize> {
    let mut loads = vec![0; count];
    loads[0] = usize::from(has_gateway);
    before.iter().filter(|worker| **worker < count).for_each(|worker| loads[*worker] += 1);
    let least = |loads: &[usize]| (0..count).min_by_key(|worker| loads[*worker]).unwrap_or(0);
    let mut after = before.to_vec();
    for worker in after.iter_mut().filter(|worker| **worker >= count) {
        *worker = least(&loads);
        loads[*worker] += 1;
    }
    loop {
        let most = (0..count).max_by_key(|worker| loads[*worker]).unwrap_or(0);
        let least = least(&loads);
        if loads[most] - loads[least] < 2 {
            return after;
        }
        let last = after.iter_mut().rev().find(|worker| **worker == most);
        *last.expect("it has a port beside the gateway") = least;
        loads[most] -= 1;
        loads[least] += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use towpath_net::time::Instant;
    use towpath_net::wire::MacAddr;
    use towpath_packet::{Burst, Device, Ledger};

    use super::*;
    use crate::config::Config;
    use crate::network::testing;

    /// Goal: a change that fails halfway changes nothing: the port stays at its worker and gets its
    /// packets; the change succeeds once its obstacle is gone. Method: the first worker watches the
    /// file of the port already, so it cannot begin to.
    #[test]
    fn a_change_that_fails_changes_nothing() {
        let config = Config { workers: 2, memory_bytes: 80 << 20, ..Config::default() };
        let mut network = testing::network();
        network.set_workers(&config).expect("workers");
        let [mut a, mut b] = ["a", "b"].map(|name| testing::add_guest(&mut network, name));
        let Network { ports, crew, .. } = &mut network;
        ports.await_port(1, port_of(ports, crew, 1, 1)).expect("watched");
        let sizes = MemoryConfig { packets: 64, small_frames: 64, large_frames: 32 };
        let (mut memory, ledger) = (Memory::new(sizes), Ledger::new());
        for attempt in 0..2 {
            let now = Instant::from_micros(attempt);
            let mut cx = Context { memory: &mut memory, ledger: &ledger, now };
            let changed = network.change_workers(1, &mut cx);
            let ports = network.report(now).ports;
            let workers: Vec<usize> = ports.iter().map(|port| port.worker).collect();
            match attempt {
                0 => {
                    let error = changed.expect_err("its file is watched").to_string();
                    assert!(error.starts_with("cannot change the number of workers: "), "{error}");
                    assert_eq!(workers, [0, 1]);
                }
                _ => {
                    changed.expect("nothing is in the way");
                    assert_eq!(workers, [0, 0]);
                }
            }
            let frame = testing::broadcast(MacAddr([2; 6]), attempt as u8);
            a.write_all(&frame).expect("room");
            let mut cx = Context { memory: &mut memory, ledger: &ledger, now };
            network.turn(true, &mut cx).expect("turned");
            network.receive(&mut Burst::new(), &mut cx).expect("received");
            network.step_others(now).expect("stepped");
            let mut came = [0; 64];
            b.read_exact(&mut came).expect("it has arrived");
            assert_eq!(frame, came);
        }
    }

    #[test]
    fn ports_are_placed_evenly() {
        for (before, count, has_gateway, after) in [
            (&[][..], 4, true, &[][..]),
            (&[0, 0, 0], 1, true, &[0, 0, 0]),
            (&[0, 0, 0, 0], 2, false, &[0, 0, 1, 1]),
            (&[0, 0, 0], 2, true, &[0, 1, 1]),
            (&[0, 0, 0, 0], 4, false, &[0, 3, 2, 1]),
            (&[0, 1, 2, 3, 1, 2], 1, true, &[0; 6]),
            (&[0, 1, 2, 3, 1, 2], 3, false, &[0, 1, 2, 0, 1, 2]),
            (&[0, 1], 8, true, &[2, 1]),
        ] {
            assert_eq!(place(before, count, has_gateway), after, "{before:?} to {count}");
        }
    }

    /// Goal: for all numbers of ports and workers, no worker has two more than another one, and no
    /// port moves if that is so already.
    #[test]
    fn few_ports_move() {
        for ports in 0..20 {
            for (from, to) in (1..=8).flat_map(|from| (1..=8).map(move |to| (from, to))) {
                let before = place(&vec![0; ports], from, true);
                let after = place(&before, to, true);
                let load = |worker| {
                    let own = after.iter().filter(|other| **other == worker).count();
                    own + usize::from(worker == 0)
                };
                let loads: Vec<usize> = (0..to).map(load).collect();
                let [most, least] =
                    [loads.iter().max(), loads.iter().min()].map(|load| *load.expect("one"));
                assert!(most - least < 2, "{ports} ports, {from} to {to}: {loads:?}");
                assert_eq!(place(&after, to, true), after);
            }
        }
    }
}
