//! `towpath up`: serves a network of virtual machines.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use towpath_gateway::flows::allow_many_files;
use towpath_gateway::network::{Attachment, LeasesFound, Network, Operation, TransactionError};
use towpath_gateway::services::Services;
use towpath_gateway::worker::Worker;
use towpath_io::confine::Mode;
use towpath_io::confine::broker::{Duties, Guests, Ports};
use towpath_io::namespace::signals::Signals;
use towpath_io::process_sys::Inherited;
use towpath_io::vhost_user::{self, cut};

use crate::config::args::UpArguments;
use crate::config::plan::{self, Plan};
use crate::config::settings;
use crate::control::api;
use crate::control::capture::{CAPTURE, Captures};
use crate::control::socket::Control;
use crate::exit::{Ending, Failure};
use crate::messages::Messages;
use crate::process::confine::Confinement;
use crate::process::notify::Notifier;
use crate::process::parent::{take_ready, tell_ready};
use crate::process::serve;

/// Serves until a signal requests the end.
pub(crate) fn up(mut arguments: UpArguments) -> Result<Ending, Failure> {
    let messages = settings::messages(&arguments.gateway);
    let mut inherited = Inherited::take().context("cannot list the inherited file descriptors")?;
    let ready = take_ready(&mut inherited, arguments.gateway.ready_fd)?;
    drop(inherited);
    let plan = plan::plan(&mut arguments);
    if arguments.check {
        return Ok(Ending::Code(0));
    }
    let notifier = Notifier::new()?;
    let signals = Signals::block()?;
    allow_many_files();
    cut::guard().context("cannot install the handler of SIGBUS")?;
    let control = serve::control(messages);
    let duties = duties(&plan, control.as_ref().map(Control::files));
    let confinement = Confinement::begin(&arguments.gateway, messages, duties, None)?;
    // Dropped after the network, whose end ends the captures.
    let mut captures = Captures::default();
    let mut worker = make(plan, messages)?;
    match worker.side().port_count() {
        0 => messages.notice("the network has no ports; add one with `towpath port add`"),
        count => messages.detail(format_args!("serving {count} ports")),
    }
    let control = serve::announce(control, messages);
    confinement.isolate()?;
    if let Err(error) = vhost_user::prepare() {
        messages.notice(format_args!("no guest can connect to a vhost-user port: {error}"));
    }
    confinement.release_input_and_output()?;
    // A process that waits for this may use the control socket next.
    tell_ready(ready)?;
    notifier.ready()?;
    confinement.seal(Mode::Network);
    serve(&mut worker, &mut captures, &signals, control, &messages)?;
    worker.with_side(Network::shut_down);
    if arguments.gateway.stats {
        messages.error(format_args!("{}\n{}", worker.report(), worker.side().report(worker.now())));
    }
    Ok(Ending::Code(0))
}

/// Returns the duties of the broker.
fn duties(plan: &Plan, control: Option<(Vec<PathBuf>, u64)>) -> Duties {
    let mut connect = Vec::new();
    for (_, operation) in &plan.operations {
        let Operation::Add { attachment, .. } = operation else { continue };
        match attachment {
            Attachment::Tap(_) => {}
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
        guests: Some(Guests { connect }),
        ..Duties::default()
    }
}

/// Makes the planned network.
fn make(plan: Plan, messages: Messages) -> anyhow::Result<Worker<Network>> {
    let made = Network::new(plan.network);
    let mut network = made.context("cannot create the network")?;
    network.on_news(Box::new(move |port, news| messages.detail(format_args!("{port}: {news}"))));
    let mut worker = Worker::serving(&plan.config, network, Arc::default())?;
    if let Some(services) = plan.services {
        worker.side_mut().set_services(Services::new(services));
    }
    let (places, operations): (Vec<_>, Vec<_>) = plan.operations.into_iter().unzip();
    worker.apply(operations).map_err(|TransactionError { index, error }| {
        anyhow::Error::from(error).context(places[index].clone())
    })?;
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
    match worker.side_mut().keep_leases(path, now, Box::new(tell)) {
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

/// Serves the network, and answers requests meanwhile.
fn serve(
    worker: &mut Worker<Network>,
    captures: &mut Captures,
    signals: &Signals,
    mut control: Option<Control>,
    messages: &Messages,
) -> Result<(), Failure> {
    loop {
        let mut fds = vec![signals.as_fd()];
        fds.extend(control.as_ref().map(AsFd::as_fd));
        worker.run_until(&fds)?;
        while let Some(arrived) = signals.next()? {
            if arrived.is_end() {
                return Ok(());
            }
        }
        // Serving the control socket never blocks, so it need not be ready.
        if let Some(open) = &mut control
            && let Err(error) = open.serve(|asked| match asked.request.path {
                CAPTURE => captures.begin(worker, asked),
                _ => Some(api::answer(worker, &asked.request)),
            })
        {
            messages.notice(format_args!("the control socket failed and is closed: {error}"));
            control = None;
        }
    }
}
