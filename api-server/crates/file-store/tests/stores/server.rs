//! An S3 server in this process that counts its requests and can be told to fail.

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use file_store::{Patience, S3Config, S3Store, StaticCredentials};
use http::{Method, Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use s3s::{Body, auth::SimpleAuth, service::S3ServiceBuilder};

use crate::bucket::{BUCKET, Bucket};

const KEY: (&str, &str) = ("AK", "SK");

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) headers: http::HeaderMap,
}

#[derive(Default)]
struct Script {
    asked: Vec<Asked>,
    failures: VecDeque<(u16, &'static str)>,
    silent: bool,
}

pub(crate) struct S3Server {
    pub(crate) bucket: Bucket,
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
}

impl S3Server {
    pub(crate) async fn start() -> Self {
        let bucket = Bucket::default();
        let mut service = S3ServiceBuilder::new(bucket.clone());
        service.set_auth(SimpleAuth::from_single(KEY.0, KEY.1));
        let service = service.build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(Mutex::new(Script::default()));
        let played = Arc::clone(&script);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (service, script) = (service.clone(), Arc::clone(&played));
                let answer = service_fn(move |request: Request<Incoming>| {
                    let (service, script) = (service.clone(), Arc::clone(&script));
                    async move {
                        let (failure, silent) = {
                            let mut script = script.lock().unwrap();
                            script.asked.push(Asked {
                                method: request.method().clone(),
                                target: request.uri().to_string(),
                                headers: request.headers().clone(),
                            });
                            (script.failures.pop_front(), script.silent)
                        };
                        if silent {
                            std::future::pending::<()>().await;
                        }
                        let response = match failure {
                            Some((status, code)) => refusal(status, code),
                            None => hyper::service::Service::call(&service, request).await.unwrap(),
                        };
                        Ok::<_, Infallible>(response)
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self { bucket, address, script }
    }

    pub(crate) fn config(&self) -> S3Config {
        S3Config {
            bucket: BUCKET.into(),
            prefix: "some/prefix".into(),
            region: Some("eu-west-1".into()),
            endpoint: Some(format!("http://{}", self.address)),
            path_style: true,
            encryption: None,
            credentials: Some(StaticCredentials { access_key_id: KEY.0.into(), secret_access_key: KEY.1.into() }),
            patience: Patience::default(),
        }
    }

    pub(crate) async fn store(&self) -> S3Store {
        S3Store::new(self.config()).await
    }

    /// From now on nothing is answered.
    pub(crate) fn fall_silent(&self) {
        self.script.lock().unwrap().silent = true;
    }

    /// The next requests are answered so.
    pub(crate) fn fail(&self, failures: &[(u16, &'static str)]) {
        self.script.lock().unwrap().failures.extend(failures);
    }

    /// What was asked for since the last call.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.script.lock().unwrap().asked)
    }
}

fn refusal(status: u16, code: &str) -> Response<Body> {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>told to</Message></Error>");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}
