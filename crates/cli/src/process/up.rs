//! `towpath up`: serves a network of virtual machines.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use rustix::io::Errno;
use towpath_gateway::flows::allow_many_files;
use towpath_gateway::network::{
    Attachment, EvpnSettings, LeasesFound, Network, Operation, TransactionError,
};
use towpath_gateway::services::Services;
use towpath_gateway::worker::Worker;
use towpath_io::confine::Mode;
use towpath_io::confine::broker::{Duties, Guests, Ports};
use towpath_io::endpoint::Connection;
use towpath_io::namespace::signals::Signals;
use towpath_io::process_sys::Inherited;
use towpath_io::uplink::XdpSettings;
use towpath_io::vhost_user::{self, sigbus};

use crate::config::args::{MachineArguments, UpArguments};
use crate::config::plan::{self, Connections, Plan};
use crate::config::{egress, settings};
use crate::control::api;
use crate::control::capture::{CAPTURE, Captures};
use crate::control::socket::Control;
use crate::control::super_packets::Taps;
use crate::exit::{Ending, Failure};
use crate::messages::Messages;
use crate::process::confine::Confinement;
use crate::process::daemon::{Role, Surroundings};
use crate::process::notify::Notifier;
use crate::process::parent::{report_ready, take_ready};
use crate::process::serve;

/// Serves until a signal requests the end, or the machine has gone if options say so.
pub(crate) fn up(mut arguments: UpArguments) -> Result<Ending, Failure> {
    let messages = settings::messages(&arguments.gateway);
    let mut inherited = Inherited::take().context("cannot list the inherited file descriptors")?;
    let ready = take_ready(&mut inherited, arguments.gateway.ready_fd)?;
    let connections = connections(&mut inherited, &arguments.machine)?;
    drop(inherited);
    let plan = plan::plan(&mut arguments, connections);
    if arguments.check {
        return Ok(Ending::Code(0));
    }
    let surroundings = match Surroundings::prepare(&arguments.process)? {
        Role::Serving(surroundings) => surroundings,
        Role::Over(ending) => return Ok(ending),
    };
    let notifier = Notifier::new()?;
    let signals = Signals::block()?;
    allow_many_files();
    sigbus::guard().context("cannot install the handler of SIGBUS")?;
    let control = serve::control(arguments.machine.control_socket.as_deref(), messages)?;
    let duties = Duties {
        log: egress::audit_files(&arguments.gateway.egress)?,
        ..duties(&plan, control.as_ref().map(Control::files).unwrap_or_default())
    };
    let confinement = Confinement::begin(&arguments.gateway, messages, duties, None)?;
    // Dropped after the network, whose end ends the captures.
    let mut captures = Captures::default();
    let machine = plan.machine.clone().filter(|_| arguments.machine.print_addresses);
    let sockets = if is_numbered(&arguments) { sockets(&plan) } else { Vec::new() };
    let evpn = plan.evpn.clone();
    let mut worker = make(plan, messages)?;
    let departure = match arguments.machine.one_off {
        true => Some(worker.inside_mut().departure().context("cannot make an event")?),
        false => None,
    };
    let mut control = serve::announce(control, messages);
    // A reader of this message may use the control socket next.
    match worker.inside().port_count() {
        0 => messages.notice("the network has no ports; add one with `towpath port add`"),
        count => messages.detail(format_args!("serving {count} ports")),
    }
    confinement.isolate()?;
    serve::take_policies(control.as_mut(), worker.egress())?;
    if let Err(error) = vhost_user::prepare() {
        messages.notice(format_args!("no guest can connect to a vhost-user port: {error}"));
    }
    confinement.release_input_and_output()?;
    sockets.iter().for_each(|path| messages.notice(format_args!("listening at {path}")));
    if let Some(machine) = machine {
        // Standard error is gone; the failure cannot be reported.
        let _ = io::stderr().write_all(machine.to_string().as_bytes());
    }
    surroundings.announce()?;
    // A process that waits for this may use the control socket next.
    report_ready(ready)?;
    notifier.ready()?;
    confinement.seal(Mode::Network);
    // They inherit the confinement of this thread.
    worker.begin().context("cannot start the workers of the network")?;
    if let Some(settings) = evpn {
        start_evpn(worker.inside_mut(), &settings, messages)?;
    }
    let end = departure.as_ref().map(AsFd::as_fd);
    serve(&mut worker, &mut captures, (&signals, end), control, &messages)?;
    worker.with_inside(Network::shut_down);
    if let Some(egress) = worker.egress() {
        egress.write_learned().context("option --learn")?;
    }
    if arguments.gateway.stats {
        messages.error(format_args!(
            "{}\n{}",
            worker.report(),
            worker.inside().report(worker.now())
        ));
    }
    Ok(Ending::Code(0))
}

/// Starts the BGP speaker, which reports its neighbours' states as messages.
fn start_evpn(
    network: &mut Network,
    settings: &EvpnSettings,
    messages: Messages,
) -> anyhow::Result<()> {
    let tell = move |neighbor, news: &dyn Display| {
        messages.notice(format_args!("BGP neighbour {neighbor}: {news}"));
    };
    network.start_evpn(settings, Box::new(tell)).context("cannot start EVPN")
}

/// Takes over the connected sockets that options name.
fn connections(
    inherited: &mut Inherited,
    arguments: &MachineArguments,
) -> anyhow::Result<Connections> {
    let all = [("stream-fd", &arguments.stream_fd), ("vhost-user-fd", &arguments.vhost_user_fd)];
    let mut connections = Connections::new();
    for (option, given) in all {
        for (name, number) in given {
            let taken = inherited.take_one(*number).map_err(|_| "is not open, or has another use");
            let taken = taken.and_then(|socket| {
                Connection::new(socket).map_err(|errno| match errno {
                    Errno::NOTSOCK => "is not a socket",
                    Errno::PROTOTYPE => "is not a stream socket",
                    _ => "is not connected",
                })
            });
            let connection = taken.map_err(|problem| {
                anyhow!(
                    "option --{option} {name}={number}: file descriptor {number} {problem}; \
                     expected a connected stream socket"
                )
            });
            connections.insert(*number, connection?);
        }
    }
    Ok(connections)
}

/// Returns true if towpath chooses the name of a socket.
fn is_numbered(arguments: &UpArguments) -> bool {
    let mut paths = arguments.stream.iter().chain(&arguments.vhost_user);
    paths.any(|(_, path)| path.to_string_lossy().contains("%i"))
}

/// Returns the paths of the sockets on which ports listen.
fn sockets(plan: &Plan) -> Vec<String> {
    let paths = plan.operations.iter().filter_map(|(_, operation)| match operation {
        Operation::Add {
            attachment: Attachment::Stream(path) | Attachment::VhostUser(path),
            ..
        } => Some(path.display().to_string()),
        _ => None,
    });
    paths.collect()
}

/// Returns the duties of the broker.
fn duties(plan: &Plan, control: Vec<(PathBuf, u64)>) -> Duties {
    let (mut connect, mut uplinks) = (Vec::new(), Vec::new());
    for (_, operation) in &plan.operations {
        let Operation::Add { attachment, .. } = operation else { continue };
        match attachment {
            Attachment::Tap(_)
            | Attachment::TapFd(_)
            | Attachment::VhostUserFd(_)
            | Attachment::StreamFd(_)
            | Attachment::Vxlan(_) => {}
            Attachment::Packet(interface) | Attachment::Xdp(XdpSettings { interface, .. }) => {
                uplinks.push(interface.clone());
            }
            Attachment::VhostUserClient(path)
            | Attachment::VhostUser(path)
            | Attachment::Stream(path) => {
                connect.push(path.clone());
                connect.extend(path.parent().map(Path::to_owned));
            }
        }
    }
    Duties {
        ports: Ports::Any,
        control,
        leases: plan.lease_file.clone(),
        guests: Some(Guests { connect, uplinks }),
        ..Duties::default()
    }
}

/// Makes the planned network.
fn make(plan: Plan, messages: Messages) -> anyhow::Result<Worker<Network>> {
    let made = Network::new(plan.network);
    let mut network = made.context("cannot create the network")?;
    network.set_workers(&plan.config).context("cannot create the workers of the network")?;
    network
        .on_news(Box::new(move |port, events| messages.detail(format_args!("{port}: {events}"))));
    let mut worker = Worker::serving(&plan.config, network, Arc::default())?;
    worker.on_conflict(Box::new(move |conflict| {
        messages.notice(format_args!(
            "the guest {conflict}, which is the gateway's address; give the guest another address"
        ));
    }));
    if let Some(services) = plan.services {
        worker.inside_mut().set_services(Services::new(services));
    }
    let egress = worker.egress().cloned();
    worker.inside_mut().set_egress(egress);
    let (places, operations): (Vec<_>, Vec<_>) = plan.operations.into_iter().unzip();
    let taps = Taps::added_by(&operations);
    worker.apply(operations).map_err(|TransactionError { index, error }| {
        anyhow::Error::from(error).context(places[index].clone())
    })?;
    taps.limit(&worker, messages);
    if let Some(path) = plan.lease_file {
        keep_leases(&mut worker, &path, messages)?;
    }
    Ok(worker)
}

/// Restores the leases of an earlier run. Problems with the file are reported, and do not stop the
/// network, unless another network uses the file: both would lease the same addresses.
fn keep_leases(
    worker: &mut Worker<Network>,
    path: &Path,
    messages: Messages,
) -> anyhow::Result<()> {
    let shown = path.display().to_string();
    let tell = {
        let shown = shown.clone();
        move |error: Option<io::Error>| match error {
            Some(error) => messages.error(format_args!(
                "cannot write leases to {shown}: {error}; retrying when a lease changes"
            )),
            None => messages.notice(format_args!("leases are written to {shown} again")),
        }
    };
    let now = worker.now();
    match worker.inside_mut().keep_leases(path, now, Box::new(tell)) {
        Ok(LeasesFound { restored, set_aside }) => {
            messages.detail(format_args!("restored {} leases from {shown}", restored.taken));
            if let Some(beside) = set_aside {
                messages.notice(format_args!(
                    "{shown} has {} lines that are not leases; it is kept as {}",
                    restored.unusable,
                    beside.display()
                ));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            return Err(error).with_context(|| {
                format!("cannot keep leases in {shown}; choose another file (--lease-file)")
            });
        }
        Err(error) => messages
            .error(format_args!("cannot use {shown}: {error}; leases will not survive a restart")),
    }
    Ok(())
}

/// Serves the network until a signal requests the end or `end` is readable, and answers requests
/// meanwhile.
fn serve(
    worker: &mut Worker<Network>,
    captures: &mut Captures,
    (signals, end): (&Signals, Option<BorrowedFd<'_>>),
    mut control: Option<Control>,
    messages: &Messages,
) -> Result<(), Failure> {
    loop {
        let mut fds = vec![signals.as_fd()];
        fds.extend(end);
        fds.extend(control.as_ref().map(AsFd::as_fd));
        let ready = worker.run_until(&fds)?;
        if end.is_some() && ready == 1 {
            return Ok(());
        }
        while let Some(arrived) = signals.next()? {
            if arrived.is_end() {
                return Ok(());
            }
        }
        // Serving the control socket never blocks, so it need not be ready.
        if let Some(open) = &mut control
            && let Err(error) = open.serve(|asked| match asked.request.path {
                CAPTURE => captures.begin(worker, asked),
                _ => Some(api::answer(worker, asked, *messages)),
            })
        {
            messages.notice(format_args!("the control socket failed and is closed: {error}"));
            control = None;
        }
    }
}
