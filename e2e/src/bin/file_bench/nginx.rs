//! An nginx of our own that takes and gives files.

use anyhow::{Context as _, bail};
use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::sleep,
};

/// It answers within this time, or does not start.
const START: Duration = Duration::from_secs(20);

/// Ends when it is dropped.
pub(crate) struct Nginx {
    port: u16,
    process: Child,
}

impl Nginx {
    /// Starts it with all its files below a folder.
    pub(crate) async fn start(program: &Path, folder: &Path) -> anyhow::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = folder.join("nginx");
        fs::create_dir_all(folder.join("files"))?;
        let place = folder.display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|of| format!("{of}_temp_path {place}/{of};"))
            .concat();
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        // As Debian sets it up, but for the limit of a body.
        let settings = format!(
            "daemon off; {user} worker_processes auto; pid {place}/pid; error_log {place}/log;
             events {{}}
             http {{
                 access_log off; sendfile on; tcp_nopush on; {temporary}
                 server {{ listen 127.0.0.1:{port}; root {place}/files; client_max_body_size 0; dav_methods PUT; }}
             }}"
        );
        let path = folder.join("nginx.conf");
        fs::write(&path, settings)?;
        let mut command = Command::new(program);
        command.arg("-e").arg(folder.join("log")).arg("-c").arg(path).stdin(Stdio::null());
        let mut process = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        let until = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            if process.try_wait()?.is_some() || Instant::now() > until {
                bail!("nginx did not start: {}", fs::read_to_string(folder.join("log")).unwrap_or_default());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { port, process })
    }

    /// Address of a file.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}/{name}", self.port)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers end with it, which they do not when it is killed.
        if let Some(pid) =
            self.process.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}
