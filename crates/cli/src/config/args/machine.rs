//! Options of `towpath up` about its machines, what they are given, and its end.

use std::path::PathBuf;

use clap::Args;

/// Options of a network that serves virtual machines.
#[derive(Debug, Args)]
pub(crate) struct MachineArguments {
    /// Add a port for a virtual machine that sends frames on the connected stream socket at file
    /// descriptor N, which towpath inherits. May be repeated.
    #[arg(long, value_name = "NAME=N", value_parser = parse_connection, help_heading = "Ports")]
    pub(crate) stream_fd: Vec<(String, i32)>,

    /// Add a port for a virtual machine that speaks vhost-user on the connected stream socket at
    /// file descriptor N, which towpath inherits. May be repeated.
    #[arg(long, value_name = "NAME=N", value_parser = parse_connection, help_heading = "Ports")]
    pub(crate) vhost_user_fd: Vec<(String, i32)>,

    /// Serve the control socket at PATH, too, for this user and root alone. A socket that no
    /// process listens on is replaced; towpath removes the socket when it ends.
    #[arg(long, value_name = "PATH", help_heading = "Process")]
    pub(crate) control_socket: Option<PathBuf>,

    /// End when the machine at any port disconnects.
    #[arg(long, help_heading = "Process")]
    pub(crate) one_off: bool,

    /// Print the address, netmask, router and DNS that the machine gets to standard error when the
    /// network is ready. Needs --copy-host or --address.
    #[arg(long, help_heading = "Diagnosis")]
    pub(crate) print_addresses: bool,

    /// Disable DHCP for IPv4 only.
    #[arg(long, help_heading = "Leases")]
    pub(crate) no_dhcpv4: bool,

    /// Disable DHCP for IPv6 only.
    #[arg(long, help_heading = "Leases")]
    pub(crate) no_dhcpv6: bool,

    /// Disable router advertisements only.
    #[arg(long, help_heading = "Leases")]
    pub(crate) no_ra: bool,

    /// Give machines no DNS servers.
    #[arg(long, help_heading = "Leases")]
    pub(crate) no_dhcp_dns: bool,

    /// Give machines no search domains.
    #[arg(long, help_heading = "Leases", conflicts_with = "search")]
    pub(crate) no_dhcp_search: bool,
}

/// Options about the serving process.
#[derive(Debug, Args)]
pub(crate) struct DaemonArguments {
    /// Continue in the background once the network is ready; this command then ends with 0, or with
    /// an error if the network cannot be served.
    #[arg(long, help_heading = "Process")]
    pub(crate) daemon: bool,

    /// Write the PID of the serving process to FILE when the network is ready.
    #[arg(long, value_name = "FILE", help_heading = "Process")]
    pub(crate) pid_file: Option<PathBuf>,

    /// Append messages to FILE instead of standard error once the network is ready.
    #[arg(long, value_name = "FILE", help_heading = "Process")]
    pub(crate) log_file: Option<PathBuf>,
}

fn parse_connection(text: &str) -> Result<(String, i32), &'static str> {
    const WANTED: &str = "expected NAME=N with a file descriptor from 3 on, for example vm1=3";
    let (name, number) = text.split_once('=').ok_or(WANTED)?;
    let number = number.parse().ok().filter(|number| *number > 2).ok_or(WANTED)?;
    Ok((name.to_owned(), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections() {
        assert_eq!(parse_connection("vm1=3"), Ok(("vm1".to_owned(), 3)));
        for wrong in ["", "3", "vm1=", "vm1=2", "vm1=-1", "vm1=x", "vm1=9999999999"] {
            assert!(parse_connection(wrong).is_err(), "{wrong}");
        }
    }
}
