//! One `pods/exec` WebSocket as a byte stream: channel 0 is written, channel 1 is read.
//!
//! No task and no queue of its own: whoever drives the HTTP/2 connection polls both directions, so the pressure back is the
//! socket's. It speaks `v5.channel.k8s.io`. Whatever way the exec ends is an error to the reader: even a status "Success" only
//! says that `attach` is gone, and it never ends by itself.

use bytes::{Buf, Bytes};
use futures_util::{Sink, Stream};
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, Resource,
    api::AttachParams,
    core::{Request as Requests, request::Error as RequestError},
};
use sandboxd_protocol::layout;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::Half;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// Most that is kept of the exec's stderr, in bytes, for the error of its end.
const SAID: usize = 4096;
/// Longest message to stdin: the API server resets the connection far above this.
const MESSAGE: usize = 128 * 1024;

/// The request that joins `sandboxd` in one half of a pod.
pub(super) fn request(namespace: &str, pod: &str, half: Half) -> Result<Request<Vec<u8>>, RequestError> {
    let params = AttachParams::default().stdin(true).stdout(true).stderr(true).container(half.as_str());
    Requests::new(Pod::url_path(&(), Some(namespace))).exec(pod, [layout::BINARY, "attach"], &params)
}

/// Opens the exec.
pub(super) async fn open(
    client: &Client,
    request: Request<Vec<u8>>,
) -> Result<
    ExecStream<impl Stream<Item = Result<Message, WsError>> + Sink<Message, Error = WsError> + Send + Unpin + use<>>,
    kube::Error,
> {
    let connection = client.connect(request).await?;
    if !connection.supports_stream_close() {
        return Err(kube::Error::Service("the API server does not speak v5.channel.k8s.io".into()));
    }
    Ok(ExecStream::new(connection.into_stream()))
}

/// The byte stream.
pub(super) struct ExecStream<S> {
    socket: S,
    unread: Bytes,
    said: Vec<u8>,
}

impl<S> ExecStream<S> {
    fn new(socket: S) -> Self {
        Self { socket, unread: Bytes::new(), said: Vec::new() }
    }

    fn ended(&self, why: &str) -> io::Error {
        let said = String::from_utf8_lossy(&self.said);
        io::Error::new(io::ErrorKind::ConnectionAborted, format!("exec ended: {why}; it said: {:?}", said.trim()))
    }

    /// Takes a message; an error is the end.
    fn take(&mut self, mut message: Bytes) -> io::Result<()> {
        // The server opens each channel with an empty message.
        if message.len() < 2 {
            return Ok(());
        }
        match message.get_u8() {
            STDOUT => self.unread = message,
            STDERR => {
                let room = SAID.saturating_sub(self.said.len()).min(message.len());
                self.said.extend_from_slice(&message[..room]);
            }
            STATUS => return Err(self.ended(&String::from_utf8_lossy(&message[..message.len().min(SAID)]))),
            _ => {}
        }
        Ok(())
    }
}

impl<S: Stream<Item = Result<Message, WsError>> + Unpin> AsyncRead for ExecStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.unread.is_empty() {
            match ready!(Pin::new(&mut this.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(message))) => this.take(message)?,
                Some(Ok(Message::Close(frame))) => return Poll::Ready(Err(this.ended(&format!("closed: {frame:?}")))),
                Some(Ok(_)) => {}
                Some(Err(e)) => return Poll::Ready(Err(this.ended(&e.to_string()))),
                None => return Poll::Ready(Err(this.ended("no status"))),
            }
        }
        let length = this.unread.len().min(buf.remaining());
        buf.put_slice(&this.unread.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl<S: Sink<Message, Error = WsError> + Unpin> AsyncWrite for ExecStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    /// Vectored, so that the head and the payload of an HTTP/2 frame leave in one message.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = bufs.iter().map(|buf| buf.len()).sum::<usize>().min(MESSAGE);
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(length + 1);
        message.push(STDIN);
        for buf in bufs {
            let room = length + 1 - message.len();
            message.extend_from_slice(&buf[..buf.len().min(room)]);
        }
        Pin::new(&mut self.socket).start_send(Message::binary(message)).map_err(io::Error::other)?;
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(io::Error::other)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A socket that says what is given and keeps what it hears.
    struct Socket {
        says: Vec<Message>,
        heard: Vec<Bytes>,
    }

    impl Stream for Socket {
        type Item = Result<Message, WsError>;
        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            if self.says.is_empty() {
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Ok(self.says.remove(0))))
        }
    }

    impl Sink<Message> for Socket {
        type Error = WsError;
        fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), WsError>> {
            Poll::Ready(Ok(()))
        }
        fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), WsError> {
            self.heard.push(message.into_data());
            Ok(())
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), WsError>> {
            Poll::Ready(Ok(()))
        }
        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), WsError>> {
            Poll::Ready(Ok(()))
        }
    }

    fn says(messages: &[&[u8]]) -> ExecStream<Socket> {
        let says = messages.iter().map(|message| Message::binary(message.to_vec())).collect();
        ExecStream::new(Socket { says, heard: Vec::new() })
    }

    #[tokio::test]
    async fn only_stdout_is_read_and_every_end_is_an_error() {
        let success = b"\x03{\"status\":\"Success\"}";
        for (messages, end) in [
            (vec![b"\x01".as_slice(), b"\x01hel", b"\x02oops", b"\x01lo", success], "Success"),
            (vec![b"\x01hello".as_slice(), b"\x02oops"], "no status"),
        ] {
            let mut stream = says(&messages);
            let mut read = [0; 5];
            stream.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"hello");
            let error = stream.read_u8().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
            assert!(error.to_string().contains(end) && error.to_string().contains("oops"), "{error}");
        }
    }

    #[tokio::test]
    async fn what_is_written_leaves_in_one_message_up_to_the_limit() {
        let mut stream = says(&[]);
        let written = stream.write_vectored(&[io::IoSlice::new(b"ab"), io::IoSlice::new(b"cd")]).await.unwrap();
        assert_eq!((written, &*stream.socket.heard[0]), (4, b"\0abcd".as_slice()));
        stream.write_all(&vec![7; MESSAGE + 10]).await.unwrap();
        let lengths: Vec<_> = stream.socket.heard[1..].iter().map(Bytes::len).collect();
        assert_eq!(lengths, [MESSAGE + 1, 11]);
    }

    #[test]
    fn the_exec_names_one_command_and_one_container() {
        let request = request("ns", "pod-1", Half::Files).unwrap();
        let uri = request.uri().to_string();
        assert!(uri.starts_with("/api/v1/namespaces/ns/pods/pod-1/exec?"), "{uri}");
        for part in ["container=files", "command=%2Fopt%2Fsandboxd%2Fsandboxd&command=attach", "stdin=true"] {
            assert!(uri.contains(part), "{uri}");
        }
        assert!(!uri.contains("tty"), "{uri}");
    }

    #[tokio::test]
    async fn other_messages_are_passed_over() {
        let says = vec![Message::text("x"), Message::binary(vec![1, b'y'])];
        let mut stream = ExecStream::new(Socket { says, heard: Vec::new() });
        assert_eq!(stream.read_u8().await.unwrap(), b'y');
    }
}
