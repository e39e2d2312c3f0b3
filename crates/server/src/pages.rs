//! The pages: the bundle of `ui/`, as it was built.

use std::io::Read;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use flate2::read::GzDecoder;
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use millstream::Error;
use ring::digest::{SHA256, digest};

use crate::problem::Problem;

/// A file of the bundle.
struct Asset {
    /// Its path from the root.
    path: &'static str,
    media_type: &'static str,
    /// Its bytes, by gzip.
    compressed: &'static [u8],
}

const ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The page that shows all others, by their paths.
const INDEX: &str = "index.html";

/// The file at the path of `uri`. What has no ending is a page.
pub async fn page(uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    let is_page = path.is_empty() || !path.rsplit('/').next().unwrap_or_default().contains('.') || is_file_page(path);
    let wanted = if is_page { INDEX } else { path };
    match ASSETS.iter().find(|asset| asset.path == wanted) {
        Some(asset) => answer(asset, &headers),
        None => Problem::absent(Error::refused("there is no such page").text(path)).into_response(),
    }
}

/// Whether the path is that of a page about a file, which may have an ending.
fn is_file_page(path: &str) -> bool {
    path.starts_with("jobs/")
}

/// Whether the name of a file of the bundle has a hash of what is in it: `assets/app-ABCD2345.js`.
fn has_hash(path: &str) -> bool {
    let stem = path.strip_prefix("assets/").and_then(|name| Some(name.rsplit_once('.')?.0));
    let hash = stem.and_then(|stem| Some(stem.rsplit_once('-')?.1));
    hash.is_some_and(|hash| hash.len() == 8 && hash.chars().all(|one| one.is_ascii_uppercase() || one.is_ascii_digit()))
}

fn answer(asset: &Asset, headers: &HeaderMap) -> Response {
    let hash = digest(&SHA256, asset.compressed);
    let tag = format!("\"{}\"", hash.as_ref().iter().take(12).map(|byte| format!("{byte:02x}")).collect::<String>());
    let has =
        |name, what: &str| headers.get_all(name).iter().any(|value| value.to_str().is_ok_and(|is| is.contains(what)));
    let mut response = match has(IF_NONE_MATCH, &tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false if has(ACCEPT_ENCODING, "gzip") => {
            let mut response = Response::new(Body::from(asset.compressed));
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        }
        false => {
            let mut plain = Vec::new();
            // It was compressed when the program was built.
            let _ = GzDecoder::new(asset.compressed).read_to_end(&mut plain);
            Response::new(Body::from(plain))
        }
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.media_type));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    // What has a hash in its name never changes. Another version of the program has other files under the other names.
    let lasts = if has_hash(asset.path) { "public, max-age=31536000, immutable" } else { "no-cache" };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(lasts));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_has_a_page_and_what_it_names() {
        let index = ASSETS.iter().find(|asset| asset.path == INDEX).expect("the page");
        let mut text = String::new();
        GzDecoder::new(index.compressed).read_to_string(&mut text).expect("a page");
        let named: Vec<&str> = text.split('"').filter_map(|part| part.strip_prefix('/')).collect();
        let named: Vec<&str> = named.into_iter().filter(|path| path.starts_with("assets/")).collect();
        assert!(named.len() >= 3, "{text}");
        for path in named {
            assert!(ASSETS.iter().any(|asset| asset.path == path), "{path}");
        }
    }

    #[test]
    fn files_with_a_hash_in_their_names_are_kept() {
        assert!(has_hash("assets/app-ABCD2345.js"));
        for path in ["index.html", "assets/icon.svg", "assets/a-b.js", "licences.txt"] {
            assert!(!has_hash(path), "{path}");
        }
    }
}
