//! The one thread that waits for signals: it reaps every child, and turns SIGTERM into a shutdown.

use crate::{
    process::table::Shims,
    sys::{self, Signalled},
};
use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// From SIGTERM to the end of the process, whatever the rest of it does.
const SHUTDOWN_LIMIT: Duration = Duration::from_millis(900);

/// Whether a SIGTERM counts. Code in the sandbox can send one to PID 1; only one from outside the PID namespace has no sender.
fn is_trusted(own_pid: u32, sender: i32) -> bool {
    own_pid != 1 || sender == 0
}

/// Starts the thread. SIGTERM and SIGCHLD must be blocked already. The receiver turns true at a SIGTERM that counts.
pub(crate) fn start(shims: Arc<Shims>) -> io::Result<watch::Receiver<bool>> {
    let (stop, stopping) = watch::channel(false);
    thread::Builder::new().name("reaper".into()).spawn(move || run(&shims, &stop))?;
    Ok(stopping)
}

fn run(shims: &Shims, stop: &watch::Sender<bool>) {
    let mut end: Option<Instant> = None;
    loop {
        let limit = end.map(|end| end.saturating_duration_since(Instant::now()));
        match sys::wait_signal(limit) {
            Signalled::Child => shims.reap(),
            Signalled::Terminate { sender } if is_trusted(std::process::id(), sender) => {
                end.get_or_insert_with(|| Instant::now() + SHUTDOWN_LIMIT);
                stop.send_replace(true);
            }
            Signalled::Terminate { .. } | Signalled::Nothing => {}
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            shims.kill_everything();
            sys::exit_now(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_trusted;

    #[test]
    fn code_in_the_sandbox_cannot_stop_pid_1() {
        assert!(!is_trusted(1, 77));
        assert!(is_trusted(1, 0));
        assert!(is_trusted(4711, 77));
    }
}
