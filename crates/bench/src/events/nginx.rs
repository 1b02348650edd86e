//! nginx, set up to do the work of the example server with its best settings.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::scratch::Scratch;

/// The program, and the name of the system.
pub(crate) const NGINX: &str = "nginx";

/// A command that runs one process, which serves `root`. Its files are in `scratch`.
pub(crate) fn command(
    scratch: &Scratch,
    listen: SocketAddr,
    root: &Path,
) -> anyhow::Result<Command> {
    let (directory, root) = (scratch.directory().display(), root.display());
    // nginx looks up files as rarely as the example does.
    let text = format!(
        "daemon off; master_process off; worker_processes 1; worker_rlimit_nofile 65536;\n\
         pid {directory}/pid; error_log stderr;\n\
         events {{ worker_connections 16384; multi_accept on; use epoll; }}\n\
         http {{\n\
         access_log off; sendfile on; tcp_nopush on; tcp_nodelay on;\n\
         keepalive_requests 1000000000; keepalive_timeout 30s;\n\
         open_file_cache max=512; open_file_cache_valid 1s;\n\
         client_body_temp_path {directory}/1; proxy_temp_path {directory}/2;\n\
         fastcgi_temp_path {directory}/3; uwsgi_temp_path {directory}/4;\n\
         scgi_temp_path {directory}/5;\n\
         server {{ listen {listen} backlog=4096; root {root}; }}\n\
         }}\n"
    );
    let path = scratch.path("nginx.conf");
    fs::write(&path, text)?;
    let mut command = Command::new(NGINX);
    command.arg("-p").arg(scratch.directory()).arg("-c").arg(path).args(["-e", "stderr"]);
    Ok(command)
}
