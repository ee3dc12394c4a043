//! A large file up and down, beside `kubectl cp` of the same file; and a command beside a transfer.

use crate::{
    sandbox::{Memory, Subject},
    say,
    table::{Row, megabytes, table},
    timed,
};
use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

/// Times each way; they alternate.
const ROUNDS: usize = 3;
/// Bytes that are handed over at a time.
const PIECE: usize = 256 * 1024;
const PATH: &str = "/tmp/stream-bench";

pub(crate) async fn measure(subject: &Subject, pod: &str, size: u64) -> anyhow::Result<()> {
    let file = std::env::temp_dir().join(format!("stream-bench-{}", std::process::id()));
    // Not all the same, so that nobody on the way can make it shorter.
    let piece: Vec<u8> = (0_u32..).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).take(PIECE).collect();
    let pieces = usize::try_from(size)? / PIECE;
    std::fs::write(&file, piece.repeat(pieces))?;
    let measured = both_ways(subject, pod, &Bytes::from(piece), pieces, &file).await;
    std::fs::remove_file(&file)?;
    measured?;
    beside_a_transfer(subject, pieces).await
}

async fn both_ways(subject: &Subject, pod: &str, piece: &Bytes, pieces: usize, file: &Path) -> anyhow::Result<()> {
    let [mut up, mut cp_up, mut down, mut cp_down] = [const { Vec::new() }; 4];
    let file = file.to_str().context("the folder for temporary files has an odd name")?;
    let back = format!("{file}.back");
    let here = Memory::of_this_program()?;
    let uid = subject.kubectl_output(&["get", "pod", pod, "-o", "jsonpath={.metadata.uid}"]).await?;
    let there = Memory::of_files(&uid)?;
    for _ in 0..ROUNDS {
        up.push(timed(upload(subject, piece, pieces)).await?);
        down.push(timed(download(subject, (piece.len() * pieces) as u64)).await?);
        let copy = |from: String, to: String| async move {
            subject.kubectl_output(&["cp", "--retries=0", "-c", "main", &from, &to]).await.map(drop)
        };
        let copied = format!("{pod}:/tmp/stream-bench-cp");
        cp_up.push(timed(copy(file.to_owned(), copied.clone())).await?);
        cp_down.push(timed(copy(copied, back.clone())).await?);
        std::fs::remove_file(&back)?;
    }
    let there =
        there.map(|memory| memory.growth()).transpose()?.map_or_else(|| "not on this machine".to_owned(), megabytes);
    say(&format!(
        "memory during transfers, beyond that at rest: this program {}, sandboxd {there}",
        megabytes(here.growth()?)
    ))?;
    let rows = [
        Row::new("kubectl cp, up", cp_up),
        Row::new("written", up),
        Row::new("kubectl cp, down", cp_down),
        Row::new("read", down),
    ];
    say(&table("a large file", &["x cp up", "x cp down"], &[0, 2], &rows)?)
}

async fn upload(subject: &Subject, piece: &Bytes, pieces: usize) -> anyhow::Result<()> {
    let piece = piece.clone();
    let body = stream::repeat_with(move || io::Result::Ok(piece.clone())).take(pieces);
    subject.sandbox().write_file(PATH, body).await?;
    Ok(())
}

async fn download(subject: &Subject, size: u64) -> anyhow::Result<()> {
    let mut file = subject.sandbox().read_file(PATH).await?;
    let mut read = 0;
    while let Some(data) = file.body.next().await {
        read += data?.len() as u64;
    }
    ensure!(read == size, "{read} of {size} bytes came");
    Ok(())
}

/// The same command idle and while a file goes up and down, over and over.
async fn beside_a_transfer(subject: &Subject, pieces: usize) -> anyhow::Result<()> {
    let (mut idle, mut beside) = (Vec::new(), Vec::new());
    for n in 0..200 {
        idle.push(timed(subject.run(&format!("idle-{n}"), "true")).await?);
    }
    let piece = Bytes::from(vec![7; PIECE]);
    let transfers = async {
        while upload(subject, &piece, pieces).await.is_ok() {
            download(subject, (PIECE * pieces) as u64).await?;
        }
        anyhow::bail!("a transfer failed")
    };
    let commands = async {
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            beside.push(timed(subject.run(&format!("beside-{}", beside.len()), "true")).await?);
        }
        anyhow::Ok(())
    };
    tokio::select! {
        failed = transfers => return failed,
        done = commands => done?,
    }
    say(&table(
        "a command beside a transfer",
        &["x idle"],
        &[0],
        &[Row::new("idle", idle), Row::new("beside a transfer", beside)],
    )?)
}
