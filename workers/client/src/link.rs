//! A WebSocket that comes back: JSON messages to and from whichever server can be reached.
//!
//! A [`Link`] is a task that connects, tells its owner, pumps messages both ways, and on any failure waits a full-jitter
//! back-off and tries the next server. The owner sees a sequence of [`LinkEvent`]s. What it sends goes through the
//! [`Connection`] handed out with [`LinkEvent::Connected`] and dies with it: a message meant for one connection is never
//! delivered on another, before its greeting. What must arrive is repeated by the owner after the next greeting.
//!
//! Invariants: both queues are bounded (a slow owner stops reading, which the peer feels as TCP backpressure); a peer
//! silent for [`LinkConfig::silent_after`] though pinged is taken for gone; reading never waits for writing, so two
//! peers with full buffers cannot hold each other; one log line a change of state, not one a try.

use std::{marker::PhantomData, time::Duration};

use futures::{SinkExt, StreamExt};
use http::HeaderValue;
use serde::{Serialize, de::DeserializeOwned};
use tidemill_protocol::{MAX_MESSAGE_BYTES, Problem};
use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        self, Message,
        client::IntoClientRequest,
        protocol::{CloseFrame, WebSocketConfig, frame::coding::CloseCode},
    },
};

use crate::{Backoff, ServerUrl, Token, api::with_sources};

/// How a link is made.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Servers, any of which will do.
    pub servers: Vec<ServerUrl>,
    /// Path of the WebSocket, such as [`tidemill_protocol::AGENT_PATH`].
    pub path: String,
    /// Shown as bearer token.
    pub token: Option<Token>,
    /// Messages that may wait to be sent, and events that may wait to be taken.
    pub queue: usize,
    /// Time to connect and upgrade.
    pub connect_timeout: Duration,
    /// How often the peer is pinged.
    pub ping_every: Duration,
    /// Silence after which the peer is taken for gone; also the longest a single write may take.
    pub silent_after: Duration,
    /// Waits between tries.
    pub backoff: Backoff,
}

impl LinkConfig {
    /// The usual: queues of 64, a ping every 1.5 s, gone after 5 s, back-off from 200 ms to 5 s.
    pub fn new(servers: Vec<ServerUrl>, path: &str, token: Option<Token>) -> Self {
        Self {
            servers,
            path: path.to_owned(),
            token,
            queue: 64,
            connect_timeout: Duration::from_secs(5),
            ping_every: Duration::from_millis(1500),
            silent_after: Duration::from_secs(5),
            backoff: Backoff::default(),
        }
    }
}

/// What happens on a link.
#[derive(Debug)]
pub enum LinkEvent<Out, In> {
    /// A server took the connection. The first message is the owner's to send.
    Connected(Connection<Out>),
    /// A message came.
    Message(In),
    /// The connection ended, or could not be made. Said once until the next `Connected`, and again when the reason
    /// changes.
    Disconnected {
        /// One sentence.
        reason: String,
        /// The server's refusal, if it gave one.
        problem: Option<Problem>,
    },
}

/// The sending side of one connection.
#[derive(Debug)]
pub struct Connection<Out> {
    server: String,
    queue: mpsc::Sender<Out>,
}

impl<Out> Clone for Connection<Out> {
    fn clone(&self) -> Self {
        Self {
            server: self.server.clone(),
            queue: self.queue.clone(),
        }
    }
}

/// The connection a message was meant for is gone, or (from [`Connection::try_send`]) its queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkClosed {
    /// Gone; a [`LinkEvent::Disconnected`] says why.
    #[error("the connection is gone")]
    Gone,
    /// The peer reads too slowly.
    #[error("the connection's send queue is full")]
    Full,
}

impl<Out> Connection<Out> {
    /// The server at the other end.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Queues a message, waiting for room.
    pub async fn send(&self, message: Out) -> Result<(), LinkClosed> {
        self.queue.send(message).await.map_err(|_| LinkClosed::Gone)
    }

    /// Queues a message if there is room now.
    pub fn try_send(&self, message: Out) -> Result<(), LinkClosed> {
        self.queue.try_send(message).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => LinkClosed::Full,
            mpsc::error::TrySendError::Closed(_) => LinkClosed::Gone,
        })
    }
}

/// A reconnecting WebSocket; see the module. Ends when dropped.
#[derive(Debug)]
pub struct Link<Out, In> {
    events: mpsc::Receiver<LinkEvent<Out, In>>,
    close: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

impl<Out, In> Link<Out, In>
where
    Out: Serialize + Send + 'static,
    In: DeserializeOwned + Send + 'static,
{
    /// Starts connecting. Must be called within a tokio runtime.
    pub fn open(config: LinkConfig) -> Self {
        let (events_in, events) = mpsc::channel(config.queue.max(1));
        let (close, closed) = oneshot::channel();
        let pump = Pump {
            // Peers with the same list must not all begin at its head.
            server: fastrand::usize(..config.servers.len().max(1)),
            config,
            events: events_in,
            said: None,
            direction: PhantomData,
        };
        let task = tokio::spawn(pump.run(closed));
        Self {
            events,
            close: Some(close),
            task,
        }
    }

    /// The next event. `None` only after [`Link::close`]. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<LinkEvent<Out, In>> {
        self.events.recv().await
    }

    /// Sends what is queued, closes the connection in order and waits for that, at most one second.
    pub async fn close(mut self) {
        // Nobody will take events any more; without this the pump could wait for room.
        self.events.close();
        drop(self.close.take());
        if timeout(Duration::from_secs(1), &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

struct Pump<Out, In> {
    config: LinkConfig,
    server: usize,
    events: mpsc::Sender<LinkEvent<Out, In>>,
    /// The reason logged and told last, while disconnected.
    said: Option<String>,
    direction: PhantomData<fn(Out) -> In>,
}

type Socket = WebSocketStream<TcpStream>;

/// Why a connection attempt or a connection ended.
struct Ended {
    reason: String,
    problem: Option<Box<Problem>>,
}

impl Ended {
    fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            problem: None,
        }
    }
}

impl<Out, In> Pump<Out, In>
where
    Out: Serialize + Send + 'static,
    In: DeserializeOwned + Send + 'static,
{
    async fn run(mut self, mut closed: oneshot::Receiver<()>) {
        let mut backoff = self.config.backoff.clone();
        if self.config.servers.is_empty() {
            tracing::error!(code = "no_server", "no server address is configured");
            let _ = closed.await;
            return;
        }
        loop {
            let server = self.config.servers[self.server].clone();
            let attempt = tokio::select! {
                _ = &mut closed => return,
                attempt = connect(&self.config, &server) => attempt,
            };
            let ended = match attempt {
                Ok(socket) => {
                    let since = Instant::now();
                    let Some(ended) = self.serve(&server, socket, &mut closed).await else {
                        return;
                    };
                    // A server that takes connections and drops them at once must not be hammered.
                    if since.elapsed() > backoff.cap() {
                        backoff.reset();
                    }
                    ended
                }
                Err(ended) => ended,
            };
            self.server = (self.server + 1) % self.config.servers.len();
            if !self.tell_disconnected(&server, ended).await {
                return;
            }
            tokio::select! {
                _ = &mut closed => return,
                () = tokio::time::sleep(backoff.next_wait()) => {}
            }
        }
    }

    async fn tell_disconnected(&mut self, server: &ServerUrl, ended: Ended) -> bool {
        if self.said.as_deref() == Some(&ended.reason) {
            return !self.events.is_closed();
        }
        tracing::warn!(%server, path = self.config.path, reason = ended.reason, "not connected; trying again");
        self.said = Some(ended.reason.clone());
        let event = LinkEvent::Disconnected {
            reason: ended.reason,
            problem: ended.problem.map(|problem| *problem),
        };
        self.events.send(event).await.is_ok()
    }

    /// Pumps one connection until it ends. `None`: the owner closed or dropped the link.
    async fn serve(&mut self, server: &ServerUrl, socket: Socket, closed: &mut oneshot::Receiver<()>) -> Option<Ended> {
        let (queue, outgoing) = mpsc::channel(self.config.queue.max(1));
        let connection = Connection {
            server: server.to_string(),
            queue,
        };
        tracing::info!(%server, path = self.config.path, "connected");
        self.said = None;
        let (mut sink, stream) = socket.split();
        let (finish, mut finished) = oneshot::channel();
        let ended = {
            let read = read(stream, self.events.clone(), connection, self.config.silent_after);
            let write = write(&mut sink, outgoing, &mut finished, &self.config);
            tokio::pin!(read, write);
            tokio::select! {
                ended = &mut read => ended,
                ended = &mut write => Some(ended),
                _ = closed => {
                    drop(finish);
                    // Reading goes on meanwhile, else a peer with full buffers could not take our last words.
                    tokio::select! {
                        _ = &mut read => {}
                        _ = &mut write => {}
                    }
                    None
                }
            }
        };
        let frame = CloseFrame {
            code: CloseCode::Normal,
            reason: "".into(),
        };
        let _ = timeout(Duration::from_millis(500), sink.send(Message::Close(Some(frame)))).await;
        ended
    }
}

/// Reads until the connection ends (`Some`) or nobody takes events any more (`None`).
async fn read<Out, In: DeserializeOwned>(
    mut stream: futures::stream::SplitStream<Socket>,
    events: mpsc::Sender<LinkEvent<Out, In>>,
    connection: Connection<Out>,
    silent_after: Duration,
) -> Option<Ended> {
    if events.send(LinkEvent::Connected(connection)).await.is_err() {
        // The link is being closed: keep the connection readable until the writer has finished.
        while stream.next().await.is_some() {}
        return None;
    }
    loop {
        let message = match timeout(silent_after, stream.next()).await {
            Err(_) => {
                return Some(Ended::new(format!("nothing heard for {} ms", silent_after.as_millis())));
            }
            Ok(None) => return Some(Ended::new("the server ended the connection")),
            Ok(Some(Err(error))) => return Some(Ended::new(with_sources(&error))),
            Ok(Some(Ok(message))) => message,
        };
        let decoded = match &message {
            Message::Text(text) => serde_json::from_str(text),
            Message::Binary(bytes) => serde_json::from_slice(bytes),
            Message::Close(frame) => {
                let reason = match frame {
                    Some(frame) if !frame.reason.is_empty() => {
                        format!("the server ended the connection: {}", frame.reason)
                    }
                    _ => "the server ended the connection".to_owned(),
                };
                return Some(Ended::new(reason));
            }
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        match decoded {
            Ok(decoded) => {
                if events.send(LinkEvent::Message(decoded)).await.is_err() {
                    while stream.next().await.is_some() {}
                    return None;
                }
            }
            Err(error) => tracing::warn!(
                code = "undecodable_message",
                %error,
                "a message cannot be understood and is skipped"
            ),
        }
    }
}

/// Writes queued messages and pings until a write fails, or until asked to finish and the queue is empty.
async fn write<Out: Serialize>(
    sink: &mut futures::stream::SplitSink<Socket, Message>,
    mut outgoing: mpsc::Receiver<Out>,
    finished: &mut oneshot::Receiver<()>,
    config: &LinkConfig,
) -> Ended {
    let mut pings = tokio::time::interval(config.ping_every);
    pings.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // With all senders gone the connection stays open for reading; only pings are left to write.
    let mut senders = true;
    let mut finishing = false;
    loop {
        let message = tokio::select! {
            biased;
            _ = &mut *finished, if !finishing => {
                if !senders {
                    return Ended::new("closed");
                }
                finishing = true;
                outgoing.close();
                continue;
            }
            _ = pings.tick() => Message::Ping(Default::default()),
            next = outgoing.recv(), if senders => match next {
                Some(next) => match serde_json::to_string(&next) {
                    Ok(text) => Message::text(text),
                    Err(error) => return Ended::new(format!("a message cannot be written: {error}")),
                },
                None if finishing => return Ended::new("closed"),
                None => {
                    senders = false;
                    continue;
                }
            },
        };
        match timeout(config.silent_after, sink.send(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Ended::new(with_sources(&error)),
            Err(_) => return Ended::new("the server does not take what is sent"),
        }
    }
}

async fn connect(config: &LinkConfig, server: &ServerUrl) -> Result<Socket, Ended> {
    timeout(config.connect_timeout, handshake(config, server))
        .await
        .unwrap_or_else(|_| {
            Err(Ended::new(format!(
                "no connection within {} ms",
                config.connect_timeout.as_millis()
            )))
        })
}

async fn handshake(config: &LinkConfig, server: &ServerUrl) -> Result<Socket, Ended> {
    let mut request = server
        .websocket_url(&config.path)
        .into_client_request()
        .map_err(|error| Ended::new(with_sources(&error)))?;
    if let Some(token) = &config.token {
        request
            .headers_mut()
            .insert(http::header::AUTHORIZATION, token.header());
    }
    if let Ok(host) = HeaderValue::from_str(server.authority()) {
        request.headers_mut().insert(http::header::HOST, host);
    }
    let stream = TcpStream::connect((server.host(), server.port()))
        .await
        .map_err(|error| Ended::new(error.to_string()))?;
    // Beats and acks are small and wait for each other; Nagle would add 40 ms to each round.
    stream
        .set_nodelay(true)
        .map_err(|error| Ended::new(error.to_string()))?;
    let limits = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES));
    match client_async_with_config(request, stream, Some(limits)).await {
        Ok((socket, _)) => Ok(socket),
        Err(tungstenite::Error::Http(response)) => Err(refused(*response)),
        Err(error) => Err(Ended::new(with_sources(&error))),
    }
}

fn refused(response: http::Response<Option<Vec<u8>>>) -> Ended {
    let problem = response
        .body()
        .as_deref()
        .and_then(|body| serde_json::from_slice::<Problem>(body).ok());
    let reason = match &problem {
        Some(problem) => format!("refused: {} [{}]", problem.detail, problem.code),
        None => format!("refused with status {}", response.status()),
    };
    Ended {
        reason,
        problem: problem.map(Box::new),
    }
}
