//! The pure steps together: decisions row by row, whole lives in a simulated world, and the rendered pod.

mod lives;
mod pod;
mod rows;
mod world;
