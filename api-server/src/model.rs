//! Where samplings come from.

use engine::{ModelEvent, ModelRequest, demo};
use futures_util::{Stream, StreamExt, stream};
use std::{pin::Pin, time::Duration};

/// The events of one sampling; dropping it cancels the sampling.
pub type Sampling = Pin<Box<dyn Stream<Item = ModelEvent> + Send>>;

/// Asks the demo model, at its own pace.
pub fn sample(request: &ModelRequest) -> Sampling {
    let steps = stream::iter(demo::respond(request));
    steps
        .filter_map(|step| async move {
            match step {
                demo::Step::Event(event) => Some(event),
                demo::Step::SleepMs(millis) => {
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                    None
                }
            }
        })
        .boxed()
}
