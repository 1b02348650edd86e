//! A network whose workers are threads, the first one on the thread of the test.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use towpath_gateway::config::Config;
use towpath_gateway::network::{
    Attachment, Network, NetworkConfig, Operation, PortReport, PortSettings,
};
use towpath_gateway::worker::Worker;
use towpath_io::doorbell::EventDoorbell;
use towpath_io::endpoint::Connection;
use towpath_net::time::Duration;
use towpath_packet::Ledger;
use towpath_packet::ring::Doorbell;

use crate::rig::Guest;

/// Most reports until one is as expected. Each waits for late workers.
const REPORTS_MAX: usize = 300;

/// A network whose workers are threads.
pub(crate) struct Running {
    pub(crate) worker: Worker<Network>,
    pub(crate) tick: EventDoorbell,
}

impl Running {
    pub(crate) fn new(workers: usize) -> Self {
        let config = Config { workers, ipv4: None, ipv6: None, ..Config::default() };
        let network = NetworkConfig {
            mtu: 1500,
            gateway: None,
            gateway_addresses: Vec::new(),
            orphan: false,
            busy_poll: Duration::from_micros(50),
            seed: 1,
        };
        let mut network = Network::new(network).expect("a network");
        network.set_workers(&config).expect("workers");
        let mut worker =
            Worker::serving(&config, network, Arc::new(Ledger::new())).expect("a worker");
        worker.begin().expect("threads");
        Self { worker, tick: EventDoorbell::new().expect("a descriptor") }
    }

    pub(crate) fn apply(&mut self, operation: Operation) {
        self.worker.apply(vec![operation]).expect("applied");
    }

    /// Attaches a guest over a stream socket.
    pub(crate) fn attach(&mut self, name: &str, station: u8) -> Guest {
        Guest::new(station, self.add(name, Attachment::StreamFd))
    }

    /// Adds a port for a machine. Returns the other end of its connection.
    pub(crate) fn add_machine(&mut self, name: &str) -> UnixStream {
        self.add(name, Attachment::VhostUserFd)
    }

    fn add(&mut self, name: &str, attachment: impl Fn(Connection) -> Attachment) -> UnixStream {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let attachment = attachment(Connection::new(near.into()).expect("a connected socket"));
        let (name, settings) = (name.to_owned(), PortSettings::default());
        self.apply(Operation::Add { name, attachment, settings });
        far
    }

    pub(crate) fn port(&self, name: &str) -> PortReport {
        self.port_once(name, |_| true)
    }

    /// The port, once it is `so`: on a busy machine a worker may report late, and then its last
    /// report counts.
    pub(crate) fn port_once(&self, name: &str, so: impl Fn(&PortReport) -> bool) -> PortReport {
        let report = || self.worker.inside().report(self.worker.now()).ports;
        let found = (0..REPORTS_MAX)
            .find_map(|_| report().into_iter().find(|port| port.name == name && so(port)));
        found.unwrap_or_else(|| panic!("{name} is not as expected: {:?}", report()))
    }

    /// Serves until `tick` rings.
    pub(crate) fn serve(&mut self) {
        let tick = self.tick.clone();
        self.worker.run_until(&[tick.as_fd()]).expect("served");
        self.tick.clear();
    }

    /// Serves while `work` runs on another thread. Returns its result.
    pub(crate) fn serve_during<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        let over = Over(self.tick.clone());
        thread::scope(|scope| {
            let work = scope.spawn(move || {
                let _over = over;
                work()
            });
            self.serve();
            work.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}

/// Rings when it is dropped, by a panic, too.
struct Over(EventDoorbell);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.ring();
    }
}
