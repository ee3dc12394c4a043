//! Requests to the API server: so many in flight at most, each repeated while the server or the way to it is at fault.

use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Attempts at one request.
const ATTEMPTS: u32 = 8;
/// Wait after the first failure, doubled with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// An answer takes at most this.
const DEADLINE: Duration = Duration::from_secs(30);

/// Sends requests; clones share one limit.
#[derive(Clone)]
pub struct Requests {
    slots: Arc<Semaphore>,
    first_wait: Duration,
}

impl Requests {
    /// With a limit for all clones together.
    pub fn new(in_flight: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(in_flight)), first_wait: FIRST_WAIT }
    }

    /// The answer, or nothing when the object is gone, was replaced, or exists already: then there is nothing left to do.
    /// A request that keeps failing is logged here.
    pub async fn send<T, Call: Future<Output = kube::Result<T>>>(
        &self,
        what: &str,
        name: &str,
        mut call: impl FnMut() -> Call,
    ) -> Option<T> {
        let mut failure = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(self.first_wait * 2_u32.pow(attempt - 1)).await;
            }
            // The semaphore is never closed.
            let _slot = self.slots.acquire().await.ok()?;
            match tokio::time::timeout(DEADLINE, Box::pin(call())).await {
                Ok(Ok(answer)) => return Some(answer),
                Ok(Err(error)) if is_settled(&error) => return None,
                Ok(Err(error)) => failure = error.to_string(),
                Err(_) => failure = format!("no answer within {} s", DEADLINE.as_secs()),
            }
        }
        tracing::warn!(what, name, error = failure, "given up after {ATTEMPTS} attempts");
        None
    }
}

/// Whether a refusal is about the object, so that asking again changes nothing.
pub fn is_settled(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;
    use std::cell::Cell;

    fn impatient() -> Requests {
        Requests { first_wait: Duration::from_micros(1), ..Requests::new(1) }
    }

    fn refusal(code: u16) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure("no", "No").with_code(code)))
    }

    #[tokio::test]
    async fn a_busy_server_is_asked_again_and_a_missing_object_is_not() {
        let requests = impatient();
        let asked = Cell::new(0);
        let answer = requests
            .send("t", "n", || {
                asked.set(asked.get() + 1);
                let busy = asked.get() < 3;
                async move { if busy { Err(refusal(429)) } else { Ok(7) } }
            })
            .await;
        assert_eq!((answer, asked.get()), (Some(7), 3));
        asked.set(0);
        let answer: Option<()> = requests
            .send("t", "n", || {
                asked.set(asked.get() + 1);
                async { Err(refusal(404)) }
            })
            .await;
        assert_eq!((answer, asked.get()), (None, 1));
    }

    #[tokio::test]
    async fn a_server_that_never_recovers_is_given_up() {
        let asked = Cell::new(0);
        let answer: Option<()> = impatient()
            .send("t", "n", || {
                asked.set(asked.get() + 1);
                async { Err(refusal(503)) }
            })
            .await;
        assert_eq!((answer, asked.get()), (None, ATTEMPTS));
    }
}
