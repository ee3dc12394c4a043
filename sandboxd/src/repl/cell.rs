//! Drives a cell from its turn to its end.

use super::{
    Slot, Work,
    interpreter::{Interpreter, Outgoing, Resting, next_message, write_out},
    message::{FromInterpreter, Limits, ToInterpreter},
    talk::{self, End, Step, Talk, Why},
};
use crate::{
    names::RunId,
    process::shim::Report,
    runs::{
        drive::Runs,
        pipes::{pump, read_report, read_rest},
        run::{Channel, Run},
        table::refusal,
    },
};
use rustix::process::Pid;
use sandboxd_protocol::{ErrorBody, ErrorCode, MAX_CALL_BYTES, MAX_CALLS, MAX_FRAME_PAYLOAD, MAX_PENDING_CALLS};
use std::{
    collections::BTreeSet,
    io, mem,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    net::unix::pipe,
    sync::watch,
    task::yield_now,
    time::{Instant, sleep_until, timeout},
};

/// Time in which the end of an interpreter that closed its control pipe must be reported.
const REPORTED_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of a frame of calls that are left for what is around them.
const SLACK: usize = 64;

impl Runs {
    /// Waits for the turn of a cell and runs it.
    pub(crate) async fn cell(self: &Arc<Self>, run: &Arc<Run>, work: Work, limit: Duration) {
        let queued = self.repl.queue();
        let mut slot = tokio::select! {
            biased;
            stop = run.stop_requested(self.settings.abandoned_after) => return self.stop_waiting(run, stop),
            slot = self.repl.slot.lock() => slot,
        };
        drop(queued);
        let (mut interpreter, fresh) = match self.interpreter(&mut slot, &run.id, &work).await {
            Ok(found) => found,
            Err(why) => {
                self.settings.output.tidy(&run.id);
                return self.refuse(run, why);
            }
        };
        run.set_running();
        let (end, why) = self.converse(run, &mut interpreter, work, limit).await;
        match end {
            End::Done(_) => {}
            End::ShimLost => self.shims.kill_orphans().await,
            End::Gone(_) | End::Broken(_) | End::Killed => self.shims.kill(&interpreter.shim).await,
        }
        interpreter.stdout = read_rest(interpreter.stdout.take(), |data| run.push(Channel::Stdout, data));
        interpreter.stderr = read_rest(interpreter.stderr.take(), |data| run.push(Channel::Stderr, data));
        if let Some(sentence) = sentence(end) {
            run.push(Channel::Stderr, sentence.as_bytes());
        }
        slot.had_one |= interpreter.pid.is_some();
        if let End::Done(_) = end {
            slot.resting = Some(Resting::new(interpreter, Arc::clone(&self.shims)));
        }
        self.finish_with_outputs(run, &talk::exit(end, why, fresh));
    }

    /// The interpreter for a cell, and whether it is a new one although there had been one.
    async fn interpreter(&self, slot: &mut Slot, id: &RunId, work: &Work) -> Result<(Interpreter, bool), ErrorBody> {
        let failed = |what: &str, e: &io::Error| refusal(ErrorCode::Unavailable, format!("cannot {what}: {e}"));
        self.settings.output.create(id).map_err(|e| failed("make the output folder", &e))?;
        let is_doomed = self.repl.doomed.swap(false, Ordering::Relaxed);
        if let Some(resting) = slot.resting.take()
            && let Some(mut interpreter) = resting.wake().await
        {
            if is_doomed {
                self.shims.kill(&interpreter.shim).await;
            } else if !interpreter.is_lost {
                interpreter.drop_output();
                return Ok((interpreter, false));
            }
        }
        let started = Interpreter::start(&self.shims, &work.python, &self.settings.workspace, &work.env);
        started.map(|interpreter| (interpreter, slot.had_one)).map_err(|e| failed("start Python", &e))
    }

    /// Gives the interpreter a cell, and everything that the cell needs, until it has ended or has to be killed.
    async fn converse(
        &self,
        run: &Run,
        interpreter: &mut Interpreter,
        work: Work,
        limit: Duration,
    ) -> (End, Option<Why>) {
        interpreter.cells += 1;
        let number = interpreter.cells;
        let mut outgoing = Outgoing::default();
        outgoing.push(self.message(number, &work));
        let offered: BTreeSet<String> = work.tools.into_iter().map(|tool| tool.name).collect();
        let mut talk = Talk::new(limit, Instant::now());
        let mut queued = self.repl.queued.subscribe();
        let Interpreter { shim, stdout, stderr, report, to, from, lines, pid, .. } = interpreter;
        let mut stdout = pin!(pump(stdout, |data| run.push(Channel::Stdout, data)));
        let mut stderr = pin!(pump(stderr, |data| run.push(Channel::Stderr, data)));
        let end = loop {
            run.set_waiting(talk.is_waiting(), Instant::now());
            let step = tokio::select! {
                never = &mut stdout => match never {},
                never = &mut stderr => match never {},
                message = next_message(from, lines) => match message {
                    Ok(Some(message)) => match take(run, number, &offered, message, pid, &mut talk) {
                        Ok(None) => {
                            // Hostile code may send for ever, and others have to have their turn.
                            yield_now().await;
                            Step::Nothing
                        }
                        Ok(Some(code)) => break End::Done(code),
                        Err(what) => break End::Broken(what),
                    },
                    Ok(None) => break closed(report).await,
                    Err(what) => break End::Broken(what),
                },
                told = read_report(report) => break told.map_or(End::ShimLost, End::Gone),
                written = write_out(to, &mut outgoing), if !outgoing.is_empty() => match written {
                    Ok(()) => Step::Nothing,
                    Err(_) => break closed(report).await,
                },
                results = run.answers(), if talk.is_free() => {
                    talk.answered(Instant::now());
                    outgoing.push(ToInterpreter::Results { cell: number, results: &results }.line());
                    Step::Nothing
                }
                stop = run.stop_requested(self.settings.abandoned_after), if talk.is_free() => {
                    talk.end(Why::Stopped(stop), Instant::now())
                }
                () = another_waits(&mut queued), if talk.is_waiting() => {
                    talk.end(Why::Superseded, Instant::now())
                }
                () = sleep_until(talk.rings_at()) => talk.due(Instant::now()),
            };
            match (step, *pid) {
                (Step::Nothing, _) | (Step::Interrupt | Step::InterruptGroup, None) => {}
                (Step::Interrupt, Some(pid)) => self.shims.interrupt(shim, pid, false),
                (Step::InterruptGroup, Some(pid)) => self.shims.interrupt(shim, pid, true),
                (Step::Kill, _) => break End::Killed,
            }
        };
        run.set_waiting(false, Instant::now());
        (end, talk.why())
    }

    fn message(&self, number: u64, work: &Work) -> Vec<u8> {
        let limits = Limits {
            pending: MAX_PENDING_CALLS,
            pending_bytes: MAX_FRAME_PAYLOAD - SLACK,
            calls: MAX_CALLS,
            bytes: MAX_CALL_BYTES - MAX_FRAME_PAYLOAD,
            call_seconds: self.settings.call_timeout.as_secs_f64(),
        };
        let Work { code, tools, variables, .. } = work;
        ToInterpreter::Cell { number, code, tools, variables, limits }.line()
    }
}

/// Takes a message; the cell's exit code when that was its end.
fn take(
    run: &Run,
    number: u64,
    offered: &BTreeSet<String>,
    message: FromInterpreter,
    pid: &mut Option<Pid>,
    talk: &mut Talk,
) -> Result<Option<i32>, &'static str> {
    match message {
        FromInterpreter::Ready { pid: told } if told > 0 && pid.is_none() => *pid = Pid::from_raw(told),
        FromInterpreter::Ready { .. } => return Err("it said again that it is ready"),
        FromInterpreter::Calls(mut message) if message.cell == number => {
            run.add_calls(offered, mem::take(&mut message.calls), &message.closed)?;
            talk.told(&message, run.has_pending_calls(), Instant::now());
        }
        FromInterpreter::End { cell, code } if cell == number => return Ok(Some(code & 0xff)),
        FromInterpreter::Calls(_) | FromInterpreter::End { .. } => return Err("it spoke of another cell"),
    }
    Ok(None)
}

async fn another_waits(queued: &mut watch::Receiver<usize>) {
    if queued.wait_for(|queued| *queued > 0).await.is_err() {
        // Nobody is left who could.
        std::future::pending::<()>().await;
    }
}

/// The interpreter has closed its control pipe: usually since it has ended.
async fn closed(report: &mut pipe::Receiver) -> End {
    match timeout(REPORTED_WITHIN, read_report(report)).await {
        Ok(Some(report)) => End::Gone(report),
        Ok(None) => End::ShimLost,
        Err(_) => End::Broken("it closed its control pipe"),
    }
}

/// What stderr tells of the end, where the exit alone does not.
fn sentence(end: End) -> Option<String> {
    match end {
        End::Gone(Report::NotStarted(error)) => {
            let reason = io::Error::from_raw_os_error(error);
            Some(format!("sandboxd: the Python interpreter could not be started: {reason}\n"))
        }
        End::Broken(what) => Some(format!("sandboxd: the Python interpreter was ended: {what}\n")),
        End::Done(_) | End::Gone(_) | End::ShimLost | End::Killed => None,
    }
}
