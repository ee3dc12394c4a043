//! The open connections, one for each half of each instance.

use super::connection::Connection;
use crate::{Half, InstanceId, OpenError, Runtime};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError, Weak},
};
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Duration, Instant, sleep_until, timeout},
};

/// Time to open a stream, hello line and handshake included.
const OPEN: Duration = Duration::from_secs(30);
/// As many cut streams in [`CUTS_WITHIN`] and the instance counts as broken.
const CUTS: usize = 3;
const CUTS_WITHIN: Duration = Duration::from_mins(1);

/// Why there is no connection. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// This start of the sandbox is over.
    #[error("this start of the sandbox is over: {0}")]
    Gone(String),
    /// It did not work this time.
    #[error("{0}")]
    Failed(String),
    /// We may not open one.
    #[error("{0}")]
    Denied(String),
    /// Its streams break again and again.
    #[error("the sandbox's streams break again and again: {0}")]
    Broken(String),
}

/// The connections.
pub(crate) struct Streams {
    runtime: Arc<dyn Runtime>,
    slots: Mutex<HashMap<(InstanceId, Half), Arc<Slot>>>,
}

#[derive(Default)]
struct Slot {
    /// Also the lock under which simultaneous uses open one stream.
    connection: AsyncMutex<Option<Arc<Connection>>>,
    cuts: Mutex<VecDeque<Instant>>,
}

impl Slot {
    /// Notes a cut stream; true when there were too many.
    fn is_broken_after_cut(&self, now: Instant) -> bool {
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        cuts.push_back(now);
        cuts.retain(|at| now.duration_since(*at) < CUTS_WITHIN);
        cuts.len() >= CUTS
    }

    fn is_forgettable(&self, now: Instant) -> bool {
        let cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        let calm = cuts.iter().all(|at| now.duration_since(*at) >= CUTS_WITHIN);
        calm && self.connection.try_lock().is_ok_and(|held| held.as_ref().is_none_or(|c| !c.is_open()))
    }
}

impl Streams {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, slots: Mutex::default() })
    }

    /// The open connection, or a new one.
    pub(crate) async fn get(&self, instance: &InstanceId, half: Half) -> Result<Arc<Connection>, ConnectError> {
        let slot = self.slot(instance, half);
        match timeout(OPEN, self.get_in(&slot, instance, half)).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::Failed("no stream in time".to_owned())),
        }
    }

    async fn get_in(
        &self,
        slot: &Arc<Slot>,
        instance: &InstanceId,
        half: Half,
    ) -> Result<Arc<Connection>, ConnectError> {
        let mut held = slot.connection.lock().await;
        if let Some(connection) = held.as_ref().filter(|c| c.is_open()) {
            connection.touch();
            return Ok(connection.clone());
        }
        if held.take().is_some() && slot.is_broken_after_cut(Instant::now()) {
            self.runtime.replace(instance).await;
            return Err(ConnectError::Broken(format!("{CUTS} within a minute on {instance}")));
        }
        let opened = match self.runtime.open(instance, half).await {
            Ok(io) => Connection::open(io, half).await,
            // Not running counts as gone: to look again is what helps, and its stream was not cut a second time.
            Err(OpenError::Gone(why) | OpenError::NotRunning(why)) => return Err(ConnectError::Gone(why)),
            Err(OpenError::Denied(why)) => return Err(ConnectError::Denied(why)),
            Err(OpenError::Failed(why)) => Err(why),
        };
        match opened {
            Ok(connection) => {
                if let Some(idle) = self.runtime.stream_idle() {
                    tokio::spawn(close_when_idle(Arc::downgrade(slot), Arc::downgrade(&connection), idle));
                }
                *held = Some(connection.clone());
                Ok(connection)
            }
            Err(why) if slot.is_broken_after_cut(Instant::now()) => {
                self.runtime.replace(instance).await;
                Err(ConnectError::Broken(why))
            }
            Err(why) => Err(ConnectError::Failed(why)),
        }
    }

    fn slot(&self, instance: &InstanceId, half: Half) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (instance.clone(), half);
        if let Some(slot) = slots.get(&key) {
            return slot.clone();
        }
        let now = Instant::now();
        slots.retain(|_, slot| !slot.is_forgettable(now));
        slots.entry(key).or_default().clone()
    }

    /// How many connections are open. One that is just being opened is not.
    pub(crate) fn open_count(&self) -> usize {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = |slot: &Slot| slot.connection.try_lock().is_ok_and(|c| c.as_ref().is_some_and(|c| c.is_open()));
        slots.values().filter(|slot| is_open(slot)).count()
    }

    /// A sandbox that does not keep its word is to be replaced.
    pub(super) async fn replace(&self, instance: &InstanceId) {
        self.runtime.replace(instance).await;
    }

    /// Cuts all streams.
    pub(crate) async fn close(&self) {
        let slots = std::mem::take(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner));
        for slot in slots.into_values() {
            if let Some(connection) = slot.connection.lock().await.take() {
                connection.cut();
            }
        }
    }
}

/// Closes the connection after `idle` without a request. Taken out of its slot first, so that it does not count as cut.
async fn close_when_idle(slot: Weak<Slot>, connection: Weak<Connection>, idle: Duration) {
    loop {
        let until = match connection.upgrade() {
            Some(connection) if connection.is_open() => connection.idle_since().unwrap_or_else(Instant::now) + idle,
            Some(_) | None => return,
        };
        sleep_until(until).await;
        let (Some(slot), Some(connection)) = (slot.upgrade(), connection.upgrade()) else { return };
        let mut held = slot.connection.lock().await;
        if connection.idle_since().is_some_and(|since| since + idle <= Instant::now()) {
            held.take_if(|c| Arc::ptr_eq(c, &connection));
            connection.cut();
            return;
        }
    }
}
