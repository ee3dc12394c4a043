//! Drives a command in its shell.

use super::{End, KILLED, Runs, exit, lock};
use crate::{
    limits::{self, watchdog},
    names::RunId,
    process::{
        shim::{self, Report, Work},
        table::{Shim, Want},
    },
    runs::{
        command::Handover,
        pipes::{discard, memory_file, new_pipe, pump, read_report, read_rest},
        run::{Channel, Run, Stop},
        table::refusal,
    },
};
use rustix::fd::{AsFd as _, OwnedFd};
use sandboxd_protocol::{ErrorBody, ErrorCode, Exit};
use std::{ffi::CString, io, sync::Arc, time::Duration};
use tokio::{net::unix::pipe, sync::SemaphorePermit, time::Instant};

/// Processes that a call may have when no other can start one.
const MANY_PROCESSES: u64 = 64;

/// The streams of a started run.
struct Started {
    shim: Arc<Shim>,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    report: pipe::Receiver,
}

/// What came of a shell.
struct Attempt {
    shim: Arc<Shim>,
    /// Where processes in the background may still write.
    rest: [Option<pipe::Receiver>; 2],
    end: End,
}

impl Runs {
    pub(super) async fn command(
        self: &Arc<Self>,
        run: &Arc<Run>,
        handover: Handover,
        env: Vec<CString>,
        timeout: Duration,
        turn: SemaphorePermit<'_>,
    ) {
        let kills = self.settings.cgroup.memory_kills();
        let deadline = Instant::now() + timeout;
        let mut attempt = match self.attempt(run, &handover, &env, deadline).await {
            Ok(attempt) => attempt,
            Err(why) => {
                self.settings.output.tidy(&run.id);
                return self.refuse(run, why);
            }
        };
        if matches!(attempt.end, End::Reported(Report::NotStarted(libc::EAGAIN)))
            && self.make_room()
            && let Ok(again) = self.attempt(run, &handover, &env, deadline).await
        {
            attempt = again;
        }
        drop((handover, env));
        let Attempt { shim, rest, end } = attempt;
        if let End::Reported(Report::NotStarted(error)) = end {
            let reason = io::Error::from_raw_os_error(error);
            run.push(Channel::Stderr, format!("sandboxd: the shell could not be started: {reason}\n").as_bytes());
        }
        if matches!(end, End::Stopped(Stop::Reset)) {
            run.push(Channel::Stderr, b"sandboxd: ended: another command has restarted the sandbox\n");
        }
        let exit = exit(&end);
        // The kernel counts for the whole container: what it killed may have been another run's, but this one was killed too.
        let by_kernel = exit.code == KILLED && self.settings.cgroup.memory_kills() > kills;
        let want = shim.killed_for().or_else(|| by_kernel.then_some(Want::Memory));
        if let Some(want) = want {
            run.push(Channel::Stderr, self.killed_for(want).as_bytes());
        }
        let oom = want == Some(Want::Memory);
        self.finish_with_outputs(run, &Exit { oom, ..exit });
        drop(turn);
        self.linger(&run.id, &shim, rest);
    }

    /// Runs a shell to its end. A refusal when nothing of it was started.
    async fn attempt(
        &self,
        run: &Run,
        handover: &Handover,
        env: &[CString],
        deadline: Instant,
    ) -> Result<Attempt, ErrorBody> {
        let Started { shim, mut stdout, mut stderr, mut report } = self.start(&run.id, handover, env)?;
        run.set_running();
        // While the shell starts.
        self.shims.prepare();
        let end = tokio::select! {
            never = pump(&mut stdout, |data| run.push(Channel::Stdout, data)) => match never {},
            never = pump(&mut stderr, |data| run.push(Channel::Stderr, data)) => match never {},
            report = read_report(&mut report) => report.map_or(End::ShimLost, End::Reported),
            stop = run.stop_requested(self.settings.abandoned_after) => End::Stopped(stop),
            () = tokio::time::sleep_until(deadline) => End::TimedOut,
        };
        match end {
            End::Reported(_) => {}
            End::ShimLost => self.shims.kill_orphans().await,
            End::TimedOut | End::Stopped(_) => self.shims.kill(&shim).await,
        }
        let stdout = read_rest(stdout, |data| run.push(Channel::Stdout, data));
        let stderr = read_rest(stderr, |data| run.push(Channel::Stderr, data));
        Ok(Attempt { shim, rest: [stdout, stderr], end })
    }

    /// Keeps reading what processes in the background write, so that none of them blocks or dies of a closed pipe.
    fn linger(self: &Arc<Self>, id: &RunId, shim: &Arc<Shim>, rest: [Option<pipe::Receiver>; 2]) {
        for receiver in rest.into_iter().flatten() {
            tokio::spawn(discard(receiver));
        }
        let mut lingering = lock(&self.lingering);
        lingering.retain(|_, shim| !shim.is_gone());
        if !shim.is_gone() {
            lingering.insert(id.clone(), Arc::clone(shim));
        }
    }

    fn start(&self, id: &RunId, handover: &Handover, env: &[CString]) -> Result<Started, ErrorBody> {
        let failed = |what: &str, e: &io::Error| refusal(ErrorCode::Unavailable, format!("cannot {what}: {e}"));
        self.settings.output.create(id).map_err(|e| failed("make the output folder", &e))?;
        let launched = self.launch(handover, env).or_else(|e| match e.raw_os_error() {
            Some(libc::EAGAIN) if self.make_room() => self.launch(handover, env),
            _ => Err(e),
        });
        launched.map_err(|e| failed("start the command", &e))
    }

    fn killed_for(&self, want: Want) -> String {
        let cgroup = &self.settings.cgroup;
        let (what, limit) = match want {
            Want::Memory => ("memory", cgroup.memory_limit().map(limits::mebibytes)),
            Want::Processes => ("process", cgroup.process_limit().map(|limit| limit.to_string())),
        };
        let limit = limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
        format!("sandboxd: killed: the {what} limit{limit} of the sandbox is reached\n")
    }

    /// No process can be started: ends the call that has started most of them, if those are many. Whether there was one.
    fn make_room(&self) -> bool {
        watchdog::kill_largest(&self.shims, Want::Processes, MANY_PROCESSES)
    }

    fn launch(&self, handover: &Handover, env: &[CString]) -> io::Result<Started> {
        let [stdout, stderr, report] = [new_pipe()?, new_pipe()?, new_pipe()?];
        let script = handover.script.as_deref().map(memory_file).transpose()?;
        let mut descriptors = vec![(self.shims.null().as_fd(), 0), (stdout.1.as_fd(), 1), (stderr.1.as_fd(), 2)];
        descriptors.extend(script.as_ref().map(|script| (script.as_fd(), shim::SCRIPT_FD)));
        let receiver = |end: OwnedFd| pipe::Receiver::from_owned_fd(end);
        let (out, err, rep) = (receiver(stdout.0)?, receiver(stderr.0)?, receiver(report.0)?);
        let shim = self.shims.start(&Work {
            directory: &self.settings.workspace,
            program: &handover.program,
            args: &handover.args,
            env,
            report: report.1.as_fd(),
            descriptors: &descriptors,
        })?;
        Ok(Started { shim, stdout: Some(out), stderr: Some(err), report: rep })
    }
}
