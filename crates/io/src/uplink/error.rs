//! Why an uplink could not be opened or used, and what to do about it.

use rustix::io::Errno;
use std::fmt;

/// Why an uplink could not be opened or used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkError {
    /// Name of the interface.
    pub interface: String,
    /// What happened.
    pub problem: Problem,
}

/// What is wrong with an interface, or with our use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is no interface of this name.
    Missing,
    /// Its frames are not Ethernet frames.
    NotEthernet,
    /// This process may not open the socket.
    SocketForbidden,
    /// This process may not load the XDP program.
    ProgramForbidden,
    /// The confined process was not started with this interface.
    NotListed,
    /// The kernel has no packet sockets, or no AF_XDP sockets.
    Unsupported,
    /// The kernel cannot tie an XDP program to a process.
    NoLinks,
    /// Another AF_XDP socket uses the queue.
    QueueTaken(u32),
    /// The interface has no such queue.
    NoQueue(u32),
    /// Another XDP program is attached.
    ProgramAttached,
    /// Its driver does not run XDP programs, or not with the interface's present settings.
    NoNative(Errno),
    /// Its frames are longer than a frame of the socket's memory.
    MtuTooLarge {
        /// The interface's MTU.
        mtu: u32,
        /// The largest that fits.
        max: u32,
    },
    /// The memory of the socket could not be locked.
    Memory,
    /// The interface was deleted or moved to another network namespace.
    Gone,
    /// The kernel returned a frame that it did not have.
    Confused,
    /// Any other error, at this step.
    Os(Step, Errno),
}

/// Steps of opening and using an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Looking the interface up.
    Lookup = 1,
    /// Opening the socket.
    Socket = 2,
    /// Setting the socket's options.
    Options = 3,
    /// Registering the memory of an AF_XDP socket and mapping its rings.
    Memory = 4,
    /// Binding the socket to the interface.
    Bind = 5,
    /// Loading the XDP program and its map.
    Program = 6,
    /// Attaching the XDP program to the interface.
    Attach = 7,
    /// Receiving and sending.
    Use = 8,
}

impl Step {
    /// All steps.
    const ALL: [Self; 8] = [
        Self::Lookup,
        Self::Socket,
        Self::Options,
        Self::Memory,
        Self::Bind,
        Self::Program,
        Self::Attach,
        Self::Use,
    ];

    /// The step of this number, as a broker reports it.
    pub(super) fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|step| *step as u64 == number)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Lookup => "looking it up",
            Self::Socket => "opening a socket",
            Self::Options => "setting the socket's options",
            Self::Memory => "registering the socket's memory",
            Self::Bind => "binding the socket",
            Self::Program => "loading the XDP program",
            Self::Attach => "attaching the XDP program",
            Self::Use => "using the socket",
        }
    }
}

impl fmt::Display for UplinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interface {}: {}", self.interface, self.problem)
    }
}

impl std::error::Error for UplinkError {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str(
                "there is no such interface in this network namespace; `ip link` lists those that \
                 exist",
            ),
            Self::NotEthernet => f.write_str(
                "it has no Ethernet frames; name an Ethernet, VLAN, bond, bridge or veth interface",
            ),
            Self::SocketForbidden => f.write_str(
                "no permission to open a socket on it: this needs CAP_NET_RAW in the user \
                 namespace that owns this network namespace; run towpath as root",
            ),
            Self::ProgramForbidden => f.write_str(
                "no permission to load and attach an XDP program: this needs CAP_BPF and \
                 CAP_NET_ADMIN in the initial user namespace; run towpath as the host's root, or \
                 use a packet port",
            ),
            Self::NotListed => f.write_str(
                "the confined network opens only interfaces that it was started with; restart it \
                 with this port, or with --no-confinement",
            ),
            Self::Unsupported => f.write_str(
                "this kernel lacks such sockets; enable CONFIG_PACKET, or CONFIG_XDP_SOCKETS for \
                 an XDP port",
            ),
            Self::NoLinks => f.write_str(
                "this kernel cannot detach an XDP program when its process ends, which needs \
                 Linux 5.9; use a packet port",
            ),
            Self::QueueTaken(queue) => write!(
                f,
                "another AF_XDP socket uses queue {queue}; stop the program that has it, or choose \
                 another queue"
            ),
            Self::NoQueue(queue) => write!(
                f,
                "it has no queue {queue} for an AF_XDP socket; `ethtool -l` shows how many there \
                 are"
            ),
            Self::ProgramAttached => f.write_str(
                "another XDP program is attached to it; stop the program that attached it, or \
                 detach it with `ip link set dev NAME xdp off`",
            ),
            Self::NoNative(errno) => write!(
                f,
                "its driver does not run an XDP program in native mode with the present settings \
                 ({errno}); use mode=generic or mode=auto"
            ),
            Self::MtuTooLarge { mtu, max } => write!(
                f,
                "its MTU is {mtu}, and an XDP port takes at most {max}; lower the MTU, or use a \
                 packet port"
            ),
            Self::Memory => f.write_str(
                "not enough memory may be locked for its frames; raise the limit of locked memory \
                 (RLIMIT_MEMLOCK, LimitMEMLOCK=), or grant CAP_IPC_LOCK",
            ),
            Self::Gone => f.write_str(
                "it was deleted or moved to another network namespace; add the port again when it \
                 is back",
            ),
            Self::Confused => {
                f.write_str("the kernel returned a frame that it did not have; add the port again")
            }
            Self::Os(step, errno) => write!(f, "{} failed: {errno}", step.name()),
        }
    }
}

impl Problem {
    /// Classifies the error of a step that opens a socket or attaches a program.
    pub(super) fn at(step: Step, errno: Errno) -> Self {
        match (step, errno) {
            (Step::Lookup | Step::Bind, Errno::NODEV | Errno::NXIO) => Self::Missing,
            (Step::Socket, Errno::PERM | Errno::ACCESS) => Self::SocketForbidden,
            (Step::Socket, Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT) => Self::Unsupported,
            (Step::Program | Step::Attach, Errno::PERM | Errno::ACCESS) => Self::ProgramForbidden,
            (Step::Program, Errno::NOSYS) => Self::NoLinks,
            (Step::Attach, Errno::BUSY | Errno::EXIST) => Self::ProgramAttached,
            (Step::Attach, Errno::NODEV) => Self::Missing,
            (Step::Memory, Errno::NOBUFS | Errno::NOMEM) => Self::Memory,
            (Step::Use, Errno::NXIO | Errno::NODEV) => Self::Gone,
            (step, errno) => Self::Os(step, errno),
        }
    }

    /// Adds the name of the interface.
    pub(super) fn of(self, interface: &str) -> UplinkError {
        UplinkError { interface: interface.to_owned(), problem: self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each message says what to do next, and steps survive the way through a broker.
    #[test]
    fn each_error_names_its_remedy() {
        let text = |step, errno| Problem::at(step, errno).of("eth1").to_string();
        assert!(text(Step::Lookup, Errno::NODEV).starts_with("interface eth1: there is no such"));
        assert!(text(Step::Socket, Errno::PERM).contains("CAP_NET_RAW"));
        let forbidden = text(Step::Program, Errno::PERM);
        assert!(forbidden.contains("CAP_BPF") && forbidden.contains("CAP_NET_ADMIN"));
        assert!(text(Step::Attach, Errno::BUSY).contains("xdp off"));
        assert!(text(Step::Memory, Errno::NOBUFS).contains("RLIMIT_MEMLOCK"));
        assert!(text(Step::Use, Errno::NXIO).contains("deleted or moved"));
        let other = text(Step::Bind, Errno::IO);
        assert!(other.contains("binding the socket failed"), "{other}");
        for step in Step::ALL {
            assert_eq!(Step::from_number(step as u64), Some(step));
        }
        assert_eq!(Step::from_number(0), None);
    }
}
