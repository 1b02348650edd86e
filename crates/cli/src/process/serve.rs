//! Connects the command with the data path.

mod threads;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::fs::Mode;
use rustix::process::umask;
use towpath_gateway::capture::{FINISH_PATIENCE, Summary};
use towpath_gateway::config::Config;
use towpath_gateway::egress::enforcer::Enforcer;
use towpath_gateway::flows::{
    JoinId, JoinedDatagrams, JoinedDatagramsId, JoinedListener, allow_many_files,
};
use towpath_gateway::native::{Link, Request};
use towpath_gateway::publish::{HostPort, Protocol, Publish, PublishId, Target};
use towpath_gateway::report::Report;
use towpath_gateway::worker::Worker;
use towpath_gateway::worker_group::WorkerGroup;
use towpath_io::doorbell::EventDoorbell;
use towpath_io::endpoint::Listener;
use towpath_io::namespace::channel::{Channel, ChannelError, Message};
use towpath_io::namespace::sockets::SocketSource;
use towpath_io::tap::{Features, Tap};

use crate::control::api::{self, Serving};
use crate::control::instances::Announced;
use crate::control::port_socket::PortSocket;
use crate::control::published::Publishing;
use crate::control::socket::Control;
use crate::messages::Messages;
use crate::process::follow::{self, Follower};
use threads::Threads;

/// How long the flows of an ended program may take to deliver what it wrote.
const LINGER: Duration = Duration::from_secs(5);
/// How long a capture may take to end: its own limit, and time for a call that hangs.
const CAPTURE_LINGER: Duration = FINISH_PATIENCE.saturating_add(Duration::from_secs(1));

/// What the child has made inside.
pub(crate) struct ChildResources {
    /// Its device.
    pub(crate) tap: OwnedFd,
    pub(crate) features: Features,
    /// Sockets that listen on the program's loopback, of TCP and of UDP.
    pub(crate) listeners: Vec<JoinedListener>,
    pub(crate) datagrams: Vec<JoinedDatagrams>,
    /// Channel to the process that opens sockets inside, if there is one.
    pub(crate) opener: Option<Channel>,
    /// Channel from the process that watches ports inside, if there is one.
    pub(crate) watcher: Option<Channel>,
    /// Channel to the process that listens on ports of the host inside, if there is one.
    pub(crate) mirror: Option<Channel>,
    /// The listener of the program's calls, and samples of its sockets, for native sockets.
    pub(crate) native: Option<[OwnedFd; 3]>,
}

/// Serves one TAP device.
pub(crate) struct Gateway {
    workers: Threads,
    /// Serves the counters, unless there is no folder for the socket.
    control: Option<Control>,
    /// The capture, until its end is reported.
    capture: Option<Capture>,
    /// Reports the ports on which programs inside listen.
    watcher: Option<Channel>,
    /// Ports that are published because of that.
    followed: HashMap<HostPort, PublishId>,
    /// Requests for ports, if there is a socket for them.
    ports: Option<PortSocket>,
    /// Hands over sockets that listen inside on ports of the host's loopback.
    mirror: Option<Channel>,
    /// These sockets, by port.
    mirrored: HashMap<(Protocol, u16), Vec<Mirrored>>,
    /// Reports changes of the host's own address, if that is mapped.
    host: Option<Follower>,
    /// The process that gives native sockets to the program, if it has them.
    native: Option<Link>,
    messages: Messages,
}

/// A socket inside that was made for a port of the host.
enum Mirrored {
    Listener(JoinId),
    Datagrams(JoinedDatagramsId),
}

/// A running capture.
struct Capture {
    /// Readable when it has ended.
    ended: EventDoorbell,
    path: PathBuf,
}

impl Gateway {
    /// Takes over what was made inside and binds the published ports. Nothing is read before
    /// [`begin`](Self::begin).
    pub(crate) fn start(
        config: &Config,
        inside: ChildResources,
        mut control: Option<Control>,
        messages: Messages,
    ) -> anyhow::Result<Self> {
        allow_many_files();
        let ChildResources { tap, features, listeners, datagrams, opener, watcher, mirror, .. } =
            inside;
        let tap = Tap::from_fd(tap, features, config.mtu);
        let mut workers = match config.workers {
            1 => Threads::One(Box::new(Worker::new(config, tap)?)),
            _ => Threads::Several(Box::new(WorkerGroup::prepare(config, tap)?)),
        };
        workers.join(listeners).context("option --host-tcp-ports")?;
        for joined in datagrams {
            workers.join_datagrams(joined).context("option --host-udp-ports")?;
        }
        if let Some(opener) = opener {
            match SocketSource::new(opener) {
                Ok(source) => workers.join_published(source)?,
                Err(error) => messages.notice(format_args!(
                    "option --join-published: cannot open sockets inside: {error}"
                )),
            }
        }
        let capture = workers
            .recording()
            .zip(config.capture.as_ref())
            .map(|(recording, to)| Capture { ended: recording.ended(), path: to.path.clone() });
        take_policies(control.as_mut(), workers.egress())?;
        let (followed, mirrored) = (HashMap::new(), HashMap::new());
        Ok(Self {
            workers,
            control,
            capture,
            watcher,
            followed,
            ports: None,
            mirror,
            mirrored,
            host: None,
            native: None,
            messages,
        })
    }

    /// Answers requests for ports from now on.
    pub(crate) fn serve_ports(&mut self, ports: Option<PortSocket>) {
        self.ports = ports;
    }

    /// Follows the host's own address from now on.
    pub(crate) fn follow_address(&mut self, host: Option<Follower>) {
        self.host = host;
    }

    /// Shows what the process of native sockets counts.
    pub(crate) fn serve_native(&mut self, native: Option<Link>) {
        self.native = native;
    }

    /// Starts the threads of other workers, which wait until they are needed. Call it before this
    /// process is confined.
    pub(crate) fn begin(&mut self) {
        if let Threads::Several(workers) = &mut self.workers
            && let Err(error) = workers.begin()
        {
            let count = workers.count();
            self.messages.notice(format_args!(
                "cannot start more than {count} threads for workers (--workers): {error}"
            ));
        }
    }

    /// Serves until one of `descriptors` is readable; returns its index. Answers requests for
    /// counters meanwhile.
    pub(crate) fn run_until(&mut self, descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        loop {
            let own: [(_, fn(&mut Self)); 7] = [
                (self.control.as_ref().map(AsFd::as_fd), Self::answer),
                (self.watcher.as_ref().map(AsFd::as_fd), Self::follow),
                (self.mirror.as_ref().map(AsFd::as_fd), Self::mirror),
                (self.ports.as_ref().map(AsFd::as_fd), Self::answer_ports),
                (self.host.as_ref().map(AsFd::as_fd), Self::follow_host),
                (self.native.as_ref().map(AsFd::as_fd), Self::check_native),
                (self.capture.as_ref().map(|capture| capture.ended.as_fd()), Self::report_capture),
            ];
            let open = own.iter().filter_map(|(file, act)| Some(((*file)?, *act)));
            let (files, acts): (Vec<_>, Vec<_>) = open.unzip();
            let ready = self.workers.run_until(&[descriptors, &files].concat())?;
            match ready.checked_sub(descriptors.len()) {
                None => return Ok(ready),
                Some(index) => acts[index](self),
            }
        }
    }

    /// Publishes a port on which a program inside listens now, or closes it again. A port that the
    /// host uses otherwise stays as it is, and so does one that an option publishes.
    fn follow(&mut self) {
        let received = self.watcher.as_ref().map(Channel::receive);
        let Some(Ok(Message::Port { port, is_udp, is_open })) = received else {
            self.watcher = None;
            return;
        };
        let protocol = protocol(is_udp);
        let publish = Publish {
            protocol,
            host: None,
            interface: None,
            host_port: port,
            program_port: port,
            target: Target::Program,
            optional: false,
        };
        let host_port = publish.host_port();
        // A mirrored port is not a program's.
        let is_mirrored = self.mirrored.contains_key(&(protocol, port));
        if is_open {
            if !is_mirrored && let Ok(id) = self.workers.publish(&publish) {
                self.followed.insert(host_port, id);
                self.leave_own();
            }
        } else if let Some(id) = self.followed.remove(&host_port) {
            // It may have been unpublished by a request since.
            self.workers.unpublish(id);
        }
    }

    /// Answers requests for ports.
    fn answer_ports(&mut self) {
        let Some(ports) = &mut self.ports else { return };
        if let Err(error) = ports.serve(&mut self.workers) {
            self.messages.notice(format_args!(
                "option --port-socket: the socket failed and is closed: {error}"
            ));
            self.ports = None;
        }
        self.answer_native();
        self.leave_own();
    }

    /// Maps addresses to the host's new address, if it has changed.
    fn follow_host(&mut self) {
        let Some(host) = &mut self.host else { return };
        match host.step() {
            Ok(None) => {}
            Ok(Some(mapped)) => match &mut self.workers {
                Threads::One(worker) => worker.map_addresses(mapped),
                Threads::Several(workers) => workers.map_addresses(&mapped),
            },
            Err(error) => {
                self.messages.notice(follow::lost(&error));
                self.host = None;
            }
        }
    }

    /// The process of native sockets says something unasked, or has ended.
    fn check_native(&mut self) {
        if self.native.take_if(|native| !native.is_served()).is_some() {
            self.messages.error(
                "the process that --native needs has ended: CMD cannot connect or listen any more; \
                 start it again",
            );
        }
        self.answer_native();
    }

    /// Does what the process of native sockets has asked for, and tells it which ports are not
    /// published any more, and which connections a new policy denies.
    fn answer_native(&mut self) {
        let Some(native) = &mut self.native else { return };
        native.judge(self.workers.now());
        for port in self.workers.take_revoked() {
            native.stop(port);
        }
        while let Some(request) = native.next_request() {
            match request {
                Request::Listen(wanted) => {
                    let (port, backlog) = (wanted.port, wanted.backlog);
                    let at = self.workers.listen_natively(&wanted.socket, port, backlog);
                    native.answer_listen(&wanted, at);
                }
                Request::Ended(port) => {
                    if !self.workers.native_ended(port) {
                        self.messages.notice(
                            "a published port is lost, as another program of the host listens \
                             there (see 'ss -lnp'); publish another one",
                        );
                    }
                }
            }
        }
    }

    /// Answers a question of the mirror, or takes or closes a socket. Ports of towpath itself are
    /// not mirrored: connections to them would come back inside.
    fn mirror(&mut self) {
        let Some(mirror) = &self.mirror else { return };
        let is_fine = match mirror.receive() {
            Ok(Message::Port { port, is_udp, is_open: true }) => {
                let answer = Message::Port { port, is_udp, is_open: true };
                self.is_own(protocol(is_udp), port) || mirror.send(&answer).is_ok()
            }
            Ok(Message::Port { port, is_udp, is_open: false }) => {
                self.leave(protocol(is_udp), port);
                true
            }
            Ok(Message::Listener(port, socket)) => {
                let listener = JoinedListener { socket: socket.into(), host_port: port };
                self.take_mirrored(Protocol::Tcp, port, |workers| {
                    workers.join_one(listener).map(Mirrored::Listener)
                });
                true
            }
            Ok(Message::Datagrams(port, socket)) => {
                let joined = JoinedDatagrams { socket: socket.into(), host_port: port };
                self.take_mirrored(Protocol::Udp, port, |workers| {
                    workers.join_datagrams(joined).map(Mirrored::Datagrams)
                });
                true
            }
            // The socket is closed already.
            Err(ChannelError::NoDescriptor) => true,
            _ => false,
        };
        if !is_fine {
            self.mirror = None;
        }
    }

    /// Takes over a socket for a port of the host by `join`. A socket that cannot be watched is
    /// closed, and so is that of a port of towpath itself.
    fn take_mirrored(
        &mut self,
        protocol: Protocol,
        port: u16,
        join: impl FnOnce(&mut Threads) -> io::Result<Mirrored>,
    ) {
        if !self.is_own(protocol, port)
            && let Ok(socket) = join(&mut self.workers)
        {
            self.mirrored.entry((protocol, port)).or_default().push(socket);
        }
    }

    /// True if towpath uses this port of the host.
    fn is_own(&self, protocol: Protocol, port: u16) -> bool {
        let published = self.workers.published().into_iter();
        let mut same = published.filter(|(_, publish)| publish.protocol == protocol);
        same.any(|(_, publish)| publish.host_port == port)
    }

    /// Closes the sockets inside of a port of the host.
    fn leave(&mut self, protocol: Protocol, port: u16) {
        for socket in self.mirrored.remove(&(protocol, port)).unwrap_or_default() {
            match socket {
                Mirrored::Listener(id) => self.workers.leave(id),
                Mirrored::Datagrams(id) => self.workers.leave_datagrams(id),
            }
        }
    }

    /// Closes the sockets inside of ports that towpath publishes by now.
    fn leave_own(&mut self) {
        if !self.mirrored.is_empty() {
            let ports = self.mirrored.keys().copied();
            let own: Vec<_> =
                ports.filter(|(protocol, port)| self.is_own(*protocol, *port)).collect();
            own.into_iter().for_each(|(protocol, port)| self.leave(protocol, port));
        }
    }

    /// Answers requests for counters.
    fn answer(&mut self) {
        let Some(control) = &mut self.control else { return };
        let (workers, native) = (&mut self.workers, &mut self.native);
        let answered =
            control.serve(|asked| Some(api::answer_gateway(workers, native.as_mut(), asked)));
        if let Err(error) = answered {
            self.messages.notice(format_args!("the control socket failed and is closed: {error}"));
            self.control = None;
        }
        self.answer_native();
        self.leave_own();
    }

    /// Reports how the capture has ended, once.
    fn report_capture(&mut self) {
        let Some(Capture { path, .. }) = self.capture.take() else { return };
        let Some(recording) = self.workers.recording() else { return };
        let path = path.display();
        let Some(Summary { written, statistics, error }) = recording.summary() else {
            return self.messages.error(format_args!(
                "capture {path}: the file accepts no more data; its last packet may be incomplete"
            ));
        };
        let missed = statistics.accepted.saturating_sub(*written);
        match error {
            Some(error) => self
                .messages
                .error(format_args!("capture {path} ended after {written} packets: {error}")),
            None if missed > 0 => self.messages.notice(format_args!(
                "capture {path}: {missed} packets are missing: the file or its reader was too slow"
            )),
            None => {}
        }
    }

    /// Finishes writing the capture, within a bounded time or until one of `descriptors` is
    /// readable.
    pub(crate) fn finish_capture(&mut self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if let Some(recording) = self.workers.recording() {
            recording.finish(descriptors, CAPTURE_LINGER)?;
            self.report_capture();
        }
        Ok(())
    }

    /// Continues after the program's end until its data has been delivered, for at most [`LINGER`]
    /// or until one of `descriptors` is readable. The control socket is closed.
    pub(crate) fn finish(&mut self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.control = None;
        if let Some(native) = &mut self.native {
            native.finish(self.workers.now());
        }
        match &mut self.workers {
            Threads::One(worker) => worker.finish(descriptors, LINGER)?,
            Threads::Several(workers) => workers.finish(descriptors, LINGER)?,
        }
        if let Some(egress) = self.workers.egress() {
            egress.write_learned()?;
        }
        self.finish_capture(descriptors)
    }

    /// Returns the counters, after the program has ended.
    pub(crate) fn report(&mut self) -> Report {
        let native = self.native.as_mut().map(Link::last_counters);
        Report { native, ..self.workers.report() }
    }
}

fn protocol(is_udp: bool) -> Protocol {
    if is_udp { Protocol::Udp } else { Protocol::Tcp }
}

/// Makes the control socket, if there is a folder for it; others do not find it yet. Also listens
/// at `path`.
///
/// # Errors
/// It cannot listen at `path`.
pub(crate) fn control(path: Option<&Path>, messages: Messages) -> anyhow::Result<Option<Control>> {
    let named = path.map(listen).transpose().context("option --control-socket")?;
    let announced = Announced::new().inspect_err(|error| not_found(error, messages)).ok();
    if announced.is_none() && named.is_none() {
        return Ok(None);
    }
    Control::new(announced, named).map(Some)
}

/// Lets the control socket take long policies, if there is a policy that they could replace.
pub(crate) fn take_policies(
    control: Option<&mut Control>,
    egress: Option<&Arc<Enforcer>>,
) -> anyhow::Result<()> {
    match (control, egress) {
        (Some(control), Some(_)) => control.take_long().context("cannot take long policies"),
        _ => Ok(()),
    }
}

/// Makes a socket for this user alone.
fn listen(path: &Path) -> anyhow::Result<Listener> {
    // The broker, which removes it, may have another working directory.
    let path = std::path::absolute(path)?;
    let before = umask(Mode::RWXG | Mode::RWXO);
    let listener = Listener::bind(&path);
    umask(before);
    Ok(listener?)
}

/// Gives the control socket the name by which others find it.
pub(crate) fn announce(control: Option<Control>, messages: Messages) -> Option<Control> {
    let announced = control?;
    let is_named = announced.announce().inspect_err(|error| not_found(error, messages)).is_ok();
    is_named.then_some(announced)
}

/// Reports why others do not find the control socket.
fn not_found(error: &anyhow::Error, messages: Messages) {
    messages.detail(format_args!(
        "no control socket, so `towpath stats` cannot find this instance: {error:#}"
    ));
}

/// Encodes `features` as a number, to send them between processes.
pub(crate) fn features_to_bits(features: Features) -> u32 {
    let bit = |at: u32, on: bool| u32::from(on) << at;
    bit(0, features.checksum) | bit(1, features.tso4) | bit(2, features.tso6) | bit(3, features.uso)
}

/// Decodes the number of [`features_to_bits`].
pub(crate) fn features_from_bits(bits: u32) -> Features {
    let on = |at: u32| bits & (1 << at) != 0;
    Features { checksum: on(0), tso4: on(1), tso6: on(2), uso: on(3), ..Features::NONE }
}
