//! `POST /v1/messages` on both surfaces.

use crate::{
    App, attached,
    auth::Identity,
    body,
    commands::{CELL_LIMIT, Commands, MAX_COMMAND, OUTPUT_LIMIT},
    containers::Containers,
    entropy,
    failure::Failure,
    models,
    request::{Context, Version, new_seed},
    turns::{self, Asked, EVENTS_AHEAD, Running},
};
use axum::{
    Extension, Json,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use engine::{Fold, Function, History, ModelRequest, SandboxFacts, ToolProfile, TurnEnd, TurnPlan, TurnSettings};
use futures_util::stream;
use http::{StatusCode, header};
use providers::Model;
use sandbox_runtime::Tool as SandboxTool;
use sandboxd_protocol::layout;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::sync::OnceCell;
use wire::{
    ApiError, ApiVersion, CodeToolVersion, ErrorType, MessagesRequest, Rules, StreamEvent, Surface, Tool,
    schema::{TokenCount, Validation},
};

/// Largest body, in bytes.
pub const MAX_BODY: u64 = 32_000_000;
/// Silence after which a stream says that it is alive; proxies give up after thirty seconds or more.
const PING_AFTER: Duration = Duration::from_secs(10);
/// `max_tokens` of a Zylon request that names none.
const ZYLON_MAX_TOKENS: u64 = 32_000;

/// Runs a turn and answers with a message, or with its events as they come.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Context>,
    Extension(identity): Extension<Identity>,
    Version(version): Version,
    request: Request,
) -> Result<Response, Failure> {
    let betas = models::betas(request.headers());
    let request = read(request, &context, version).await?;
    let (mut request, model) = held_to_its_model(&app, request)?;
    attached::show(&app, &identity, &mut request).await?;
    let asked = Asked { model, betas };
    let running = start(&app, &context, &identity, &request, asked).await?;
    if request.stream { events(running, context).await } else { message(running, context.surface).await }
}

/// `POST .../count_tokens`: the tokens of the prompt that the model would be given, our sub-tools included.
pub async fn count_tokens(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Context>,
    Extension(identity): Extension<Identity>,
    Version(version): Version,
    request: Request,
) -> Result<Json<TokenCount>, Failure> {
    let betas = models::betas(request.headers());
    let body = body::read(request, MAX_BODY).await?;
    // Nothing is answered, so nothing limits it.
    let rules = Rules { surface: context.surface, version, default_max_tokens: Some(u64::MAX) };
    let mut request = MessagesRequest::parse(&body, &rules)?;
    drop(body);
    request.max_tokens = 1;
    let (mut request, model) = held_to_its_model(&app, request)?;
    attached::show(&app, &identity, &mut request).await?;
    let facts = facts(&app, &request).await;
    let profile = ToolProfile::of(&request, &facts);
    let history = History::read(
        &request,
        profile.as_ref(),
        &attached::paths(&attached::uploads(&app, &identity, &request).await?),
    )?;
    let prompt = ModelRequest::build(&request, &history, profile.as_ref(), &facts);
    let input_tokens = model.count_tokens(&prompt, &betas).await?;
    Ok(Json(TokenCount { input_tokens }))
}

/// `POST .../validate` of the Zylon surface: whether the request would be taken. A body of a wrong shape is an ordinary error.
pub async fn validate(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Context>,
    Extension(identity): Extension<Identity>,
    Version(version): Version,
    request: Request,
) -> Result<Response, Failure> {
    let request = read(request, &context, version).await?;
    match refusal(&app, &identity, request).await {
        None => Ok(Json(Validation { valid: true, errors: None }).into_response()),
        Some(error) if error.status() < 500 => {
            let body = Validation { valid: false, errors: Some(vec![error.message]) };
            Ok((StatusCode::BAD_REQUEST, Json(body)).into_response())
        }
        Some(error) => Err(error.into()),
    }
}

async fn refusal(app: &App, identity: &Identity, request: MessagesRequest) -> Option<ApiError> {
    let check = async {
        let (mut request, _) = held_to_its_model(app, request)?;
        attached::show(app, identity, &mut request).await?;
        let facts = facts(app, &request).await;
        let uploads = attached::paths(&attached::uploads(app, identity, &request).await?);
        Ok::<_, Failure>(History::read(&request, ToolProfile::of(&request, &facts).as_ref(), &uploads)?)
    };
    check.await.err().map(|failure| failure.0)
}

async fn read(request: Request, context: &Context, version: ApiVersion) -> Result<MessagesRequest, Failure> {
    let body = body::read(request, MAX_BODY).await?;
    let default_max_tokens = (context.surface == Surface::Zylon).then_some(ZYLON_MAX_TOKENS);
    Ok(MessagesRequest::parse(&body, &Rules { surface: context.surface, version, default_max_tokens })?)
}

fn held_to_its_model(app: &App, mut request: MessagesRequest) -> Result<(MessagesRequest, Arc<Model>), ApiError> {
    if !app.code_execution {
        request = request.without_code_execution();
    }
    let model = Arc::clone(app.models.catalog().find(&request.model)?);
    model.check(&mut request)?;
    Ok((request, model))
}

/// Everything that can be refused is refused here, before anything runs.
async fn start(
    app: &Arc<App>,
    context: &Context,
    identity: &Identity,
    request: &MessagesRequest,
    asked: Asked,
) -> Result<Running, Failure> {
    let facts = facts(app, request).await;
    let profile = ToolProfile::of(request, &facts);
    let uploads = attached::uploads(app, identity, request).await?;
    let history = History::read(request, profile.as_ref(), &attached::paths(&uploads))?;
    let containers = Containers::of(context.surface, identity);
    // A cell that waits is in a container that is there, or lost.
    let makes_container = !history.deferred.is_empty() && !history.waits();
    let deferred = history.turn_container.clone().filter(|_| makes_container);
    let named = request.container.as_deref();
    let container = containers.resolve(&app.sandboxes, named, deferred.as_deref(), entropy::now_millis()).await?;
    let (source, idle_seconds) = turns::Source::new(app.idle_timeout);
    let settings = TurnSettings {
        message_id: new_seed().message(),
        container,
        max_samplings: app.max_samplings,
        source: Box::new(source),
    };
    let tool = |function: &Function| SandboxTool { name: function.name.clone(), parameters: function.schema.clone() };
    let tools = profile.iter().flat_map(ToolProfile::functions).map(tool).collect();
    let plan = TurnPlan::new(request, history, &facts, settings);
    let commands = Commands {
        app: Arc::clone(app),
        containers,
        workspace: identity.files(),
        tools,
        uploads,
        command_limit: facts.command_limit,
        cell_limit: facts.cell_limit,
        sandbox: OnceCell::new(),
    };
    Ok(turns::start(plan, asked, commands, idle_seconds, app.stop.clone()))
}

fn command_timeout(app: &App, request: &MessagesRequest) -> Duration {
    let code = request.tools.iter().find_map(|tool| match tool {
        Tool::Code(code) => Some(code.version),
        Tool::Client(_) => None,
    });
    let usual = match code {
        Some(CodeToolVersion::V1) => Duration::from_mins(1),
        Some(
            CodeToolVersion::Dated20250522
            | CodeToolVersion::Dated20250825
            | CodeToolVersion::Dated20260120
            | CodeToolVersion::Dated20260521,
        )
        | None => Duration::from_mins(5),
    };
    app.command_timeout.unwrap_or(usual)
}

async fn facts(app: &App, request: &MessagesRequest) -> SandboxFacts {
    let installed = app.sandboxes.installed().await;
    let command_limit = command_timeout(app, request);
    SandboxFacts {
        runtime: "Linux with bash".to_owned(),
        libraries: installed.libraries,
        absent: installed.absent,
        working_directory: layout::WORKSPACE.to_owned(),
        command_limit,
        max_command_limit: MAX_COMMAND,
        cell_limit: CELL_LIMIT.min(command_limit),
        repl: app.repl,
        output_limit: OUTPUT_LIMIT,
        network: false,
    }
}

async fn message(mut running: Running, surface: Surface) -> Result<Response, Failure> {
    let mut fold = Fold::default();
    while let Some(event) = running.events.recv().await {
        fold.push(&event);
    }
    let message = fold.finish(&ended(running.end).await?, surface)?;
    Ok(Json(message.body(surface)).into_response())
}

async fn ended(end: tokio::task::JoinHandle<TurnEnd>) -> Result<TurnEnd, Failure> {
    end.await.map_err(|error| Failure::internal("the turn", &error))
}

/// A turn that fails before its first event is an ordinary error.
async fn events(mut running: Running, context: Context) -> Result<Response, Failure> {
    let Some(first) = running.events.recv().await else {
        return match ended(running.end).await? {
            TurnEnd::Failed { error, started: _ } => Err(error.into()),
            TurnEnd::Finished | TurnEnd::Cancelled => {
                Err(ApiError::new(ErrorType::Api, "Internal server error").into())
            }
        };
    };
    let frames = stream::unfold((Some(first), running), move |(first, mut running)| {
        let Context { id, surface } = context.clone();
        async move {
            let mut ready = Vec::from_iter(first);
            if ready.is_empty() {
                match tokio::time::timeout(PING_AFTER, running.events.recv_many(&mut ready, EVENTS_AHEAD)).await {
                    Ok(0) => return None,
                    Ok(_) => {}
                    Err(_) => ready.push(StreamEvent::Ping),
                }
            }
            // What is ready at once goes out at once.
            let frames: String = ready.iter().map(|event| event.frame(surface, &id)).collect();
            Some((Ok::<_, Infallible>(frames), (None, running)))
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // nginx would collect events otherwise.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(frames)).into_response())
}
