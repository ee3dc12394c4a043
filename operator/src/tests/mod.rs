//! The pure steps together: decisions row by row, whole lives in a simulated world, and the rendered pod.

mod idle;
mod lives;
mod pod;
mod rows;
mod workspace;
mod world;
