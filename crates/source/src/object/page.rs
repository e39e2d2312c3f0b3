//! Parses the XML of the stores: pages of listings, and errors, in the dialects of S3 (which Google Cloud Storage
//! shares) and Azure.
//!
//! It reads events and keeps text unchanged: a library that maps XML to types trims spaces at the ends of names, and
//! the store crate's own listing refuses a whole page for one odd name.

use bytes::Bytes;
use chrono::DateTime;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::Event;

/// The deepest nesting of elements.
const DEPTH_LIMIT: usize = 16;

/// An object of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Listed {
    pub(crate) key: String,
    pub(crate) size: Option<u64>,
    /// With its quotes, as in the header.
    pub(crate) etag: Option<String>,
    /// Milliseconds since 1970.
    pub(crate) modified: Option<i64>,
    /// Whether it is a folder, in stores where folders are objects.
    folder: bool,
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Page {
    pub(crate) objects: Vec<Listed>,
    /// Common prefixes of objects, with the delimiter.
    pub(crate) prefixes: Vec<String>,
    /// The token for the next page.
    pub(crate) next: Option<String>,
}

/// The contents of an error's XML.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ErrorBody {
    pub(crate) code: String,
    pub(crate) message: String,
    /// The region that would be right.
    pub(crate) region: Option<String>,
}

/// Reads a page, or says what is wrong with it.
pub(crate) fn page(xml: &Bytes) -> Result<Page, String> {
    let mut page = Page::default();
    let mut object = Listed::default();
    let (mut known, mut truncated) = (false, false);
    each_element(xml, |path, text| {
        known |= matches!(path.first().map(String::as_str), Some("ListBucketResult" | "EnumerationResults"));
        let name = path.last().map_or("", String::as_str);
        let parent = path.len().checked_sub(2).map_or("", |parent| path[parent].as_str());
        match (parent, name) {
            ("Contents", "Key") | ("Blob", "Name") => object.key = text,
            ("Contents", "Size") | ("Properties", "Content-Length") => {
                object.size = Some(text.trim().parse().map_err(|_| format!("`{text}` is not a size"))?);
            }
            ("Contents", "ETag") | ("Properties", "Etag") => object.etag = quoted(text.trim()),
            ("Contents", "LastModified") => object.modified = date(&text),
            ("Properties", "Last-Modified") => object.modified = date(&text),
            ("Properties", "ResourceType") => object.folder = text.trim() == "directory",
            (_, "Contents") | (_, "Blob") => {
                let object = std::mem::take(&mut object);
                if !object.folder {
                    page.objects.push(object);
                }
            }
            ("CommonPrefixes", "Prefix") | ("BlobPrefix", "Name") => page.prefixes.push(text),
            (_, "IsTruncated") => truncated = text.trim() == "true",
            (_, "NextContinuationToken") | (_, "NextMarker") => page.next = Some(text).filter(|text| !text.is_empty()),
            _ => {}
        }
        Ok(())
    })?;
    if truncated && page.next.is_none() {
        return Err("it is cut off, and does not say where it continues".into());
    }
    if known { Ok(page) } else { Err("it is not a listing".into()) }
}

/// Reads an error; `None` if it is none.
pub(crate) fn parse_error(xml: &[u8]) -> Option<ErrorBody> {
    let mut parse_error = ErrorBody::default();
    // The beginning of a body that was cut is useful, too.
    let _ = each_element(xml, |path, text| {
        match path.last().map(String::as_str) {
            Some("Code") if parse_error.code.is_empty() => parse_error.code = text.trim().to_owned(),
            // Azure adds the request's number and time in lines of their own.
            Some("Message" | "Details") if parse_error.message.is_empty() => {
                parse_error.message = text.trim().lines().next().unwrap_or_default().to_owned();
            }
            Some("Region") => parse_error.region = Some(text.trim().to_owned()),
            _ => {}
        }
        Ok(())
    });
    Some(parse_error).filter(|parse_error| !parse_error.code.is_empty())
}

/// The text of `body` if it is an error.
pub(crate) fn error(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let root = text.trim_start_matches('\u{feff}').trim_start();
    let root = if root.starts_with("<?") { root.split_once("?>")?.1.trim_start() } else { root };
    (root.starts_with("<Error>") || root.starts_with("<Error ")).then(|| text.to_owned())
}

/// Calls `end` at the end of each element, with the names that lead to it and the text directly in it.
fn each_element(xml: &[u8], mut end: impl FnMut(&[String], String) -> Result<(), String>) -> Result<(), String> {
    let mut reader = quick_xml::Reader::from_reader(xml);
    reader.config_mut().expand_empty_elements = true;
    let mut path: Vec<String> = Vec::new();
    let mut text = String::new();
    loop {
        match reader.read_event().map_err(|cause| cause.to_string())? {
            Event::Start(start) => {
                if path.len() == DEPTH_LIMIT {
                    return Err(format!("its elements are nested more than {DEPTH_LIMIT} deep"));
                }
                path.push(String::from_utf8_lossy(start.local_name().as_ref()).into_owned());
                text.clear();
            }
            Event::Text(part) => text.push_str(&part.decode().map_err(|cause| cause.to_string())?),
            Event::CData(part) => text.push_str(&part.decode().map_err(|cause| cause.to_string())?),
            Event::GeneralRef(reference) => match reference.resolve_char_ref().map_err(|cause| cause.to_string())? {
                Some(character) => text.push(character),
                None => {
                    let name = reference.decode().map_err(|cause| cause.to_string())?;
                    text.push_str(resolve_xml_entity(&name).ok_or_else(|| format!("`&{name};` is unknown"))?);
                }
            },
            Event::End(_) => {
                end(&path, std::mem::take(&mut text))?;
                path.pop();
            }
            Event::Eof if path.is_empty() => return Ok(()),
            Event::Eof => return Err("it is cut short".into()),
            _ => {}
        }
    }
}

/// An etag with its quotes, which Azure leaves out in listings.
fn quoted(etag: &str) -> Option<String> {
    match etag {
        "" => None,
        _ if etag.ends_with('"') => Some(etag.to_owned()),
        plain => Some(format!("\"{plain}\"")),
    }
}

/// Milliseconds of a date: RFC 3339 in S3's listings, that of HTTP in Azure's.
fn date(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Ok(date) = DateTime::parse_from_rfc3339(text) {
        return Some(date.timestamp_millis());
    }
    let date = httpdate::parse_http_date(text).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(date.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_page_of_s3() {
        let xml = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix></Prefix>
  <NextContinuationToken>1/abc=</NextContinuationToken><IsTruncated>true</IsTruncated>
  <Contents><Key> a&amp;b&#228; </Key><LastModified>2009-10-12T17:50:30.123Z</LastModified>
    <ETag>&quot;fba9&quot;</ETag><Size>434234</Size><Owner><ID>x</ID></Owner></Contents>
  <CommonPrefixes><Prefix>photos/</Prefix></CommonPrefixes>
  <Contents><Key><![CDATA[<b>]]></Key><Size>0</Size></Contents>
  <CommonPrefixes><Prefix>z/</Prefix></CommonPrefixes>
</ListBucketResult>"#;
        let page = page(&Bytes::from_static(xml.as_bytes())).expect("a page");
        assert_eq!(page.prefixes, ["photos/", "z/"]);
        assert_eq!(page.next.as_deref(), Some("1/abc="));
        let first = Listed {
            key: " a&bä ".into(),
            size: Some(434_234),
            etag: Some("\"fba9\"".into()),
            modified: Some(1_255_369_830_123),
            folder: false,
        };
        assert_eq!(page.objects[0], first);
        assert_eq!(page.objects[1], Listed { key: "<b>".into(), size: Some(0), ..Listed::default() });
    }

    #[test]
    fn a_page_that_is_cut_off_without_a_word_how_to_go_on() {
        let xml =
            "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a</Key></Contents></ListBucketResult>";
        let error = page(&Bytes::from_static(xml.as_bytes())).expect_err("objects would be missing");
        assert_eq!(error, "it is cut off, and does not say where it continues");
    }

    #[test]
    fn a_page_of_azure() {
        let xml = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ContainerName=\"c\"><Blobs>\
            <Blob><Name>a b</Name><Properties><Last-Modified>Wed, 09 Sep 2009 09:20:02 GMT</Last-Modified>\
            <Etag>0x8CBFF45D8A29A19</Etag><Content-Length>100</Content-Length><ResourceType>file</ResourceType>\
            </Properties></Blob><Blob><Name>d</Name><Properties><ResourceType>directory</ResourceType></Properties>\
            </Blob>\
            <BlobPrefix><Name>d/</Name></BlobPrefix></Blobs><NextMarker /></EnumerationResults>";
        let page = page(&Bytes::from_static(xml.as_bytes())).expect("a page");
        assert_eq!((page.objects.len(), page.next.as_deref()), (1, None));
        assert_eq!(page.objects[0].etag.as_deref(), Some("\"0x8CBFF45D8A29A19\""));
        assert_eq!(page.objects[0].modified, Some(1_252_488_002_000));
        assert_eq!(page.prefixes, ["d/"]);
    }

    #[test]
    fn what_is_no_page_is_reported() {
        for (xml, what) in [
            ("<html></html>", "it is not a listing"),
            ("", "it is not a listing"),
            ("<ListBucketResult>", "it is cut short"),
            ("<ListBucketResult><Contents><Size>x</Size></Contents></ListBucketResult>", "`x` is not a size"),
            ("<ListBucketResult>&x;</ListBucketResult>", "`&x;` is unknown"),
        ] {
            assert_eq!(page(&Bytes::from_static(xml.as_bytes())), Err(what.to_owned()), "{xml}");
        }
        let deep = Bytes::from("<a>".repeat(100_000));
        assert!(page(&deep).expect_err("too deep").contains("nested"));
    }

    #[test]
    fn an_error_says_its_code() {
        let parse_error =
            parse_error(b"<Error><Code>NoSuchKey</Code><Message>It is gone.\nRequestId:1</Message>").expect("an error");
        assert_eq!((parse_error.code.as_str(), parse_error.message.as_str()), ("NoSuchKey", "It is gone."));
        assert_eq!(super::parse_error(b"not XML"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_error(&bytes);
            let _ = page(&Bytes::from(bytes));
        }

        #[test]
        fn any_name_comes_back(key in "[^\\x00-\\x1f\\x7f-\\x9f\\u{fffe}\\u{ffff}]{1,30}") {
            let xml = format!("<ListBucketResult><Contents><Key>{}</Key></Contents></ListBucketResult>",
                quick_xml::escape::escape(key.as_str()));
            let page = page(&Bytes::from(xml)).map_err(TestCaseError::fail)?;
            prop_assert_eq!(&page.objects[0].key, &key);
        }
    }
}
