//! TLS over TCP, with rustls.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The private key and certificates of TLS, as PEM files. They are read for each connection.
///
/// As with OVS's own tools, a server is trusted if its certificate is signed by the certificate
/// authority. Its name is checked only if [`server_name`](Self::server_name) is set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The client's private key.
    pub private_key: PathBuf,
    /// The client's certificate, followed by intermediate ones.
    pub certificate: PathBuf,
    /// The certificates of the authorities that sign the servers' certificates.
    pub ca_certificate: PathBuf,
    /// The DNS name that the server's certificate must have. It is also sent to the server (SNI,
    /// RFC 6066 section 3).
    pub server_name: Option<String>,
}

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read the {what} {}: {problem}", path.display())]
    File {
        /// The file's purpose.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The name is not a DNS name.
    #[error("`{0}` is no DNS name that a certificate can have (server_name)")]
    ServerName(String),
    /// Key and certificates do not fit together.
    #[error("cannot use the private key and certificates: {0}")]
    Setup(#[from] rustls::Error),
}

/// TLS over a socket.
pub(super) struct TlsStream {
    tcp: TcpStream,
    tls: ClientConnection,
}

impl std::fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

impl TlsStream {
    pub fn new(tcp: TcpStream, address: SocketAddr, files: &TlsFiles) -> Result<Self, TlsError> {
        let name = match &files.server_name {
            None => ServerName::from(address.ip()),
            Some(name) => ServerName::try_from(name.clone())
                .map_err(|_| TlsError::ServerName(name.clone()))?,
        };
        let tls = ClientConnection::new(Arc::new(config(files)?), name)?;
        Ok(Self { tcp, tls })
    }

    pub const fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    pub fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Continues the handshake. True if it is complete.
    pub fn advance(&mut self) -> io::Result<bool> {
        loop {
            self.flush()?;
            if !self.tls.is_handshaking() {
                return Ok(true);
            }
            match self.receive() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives and decrypts the available bytes.
    fn receive(&mut self) -> io::Result<()> {
        if self.tls.read_tls(&mut self.tcp)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = self.tls.process_new_packets() {
            // Sends the alert, which contains the reason, to the server.
            let _ = self.tls.write_tls(&mut self.tcp);
            return Err(io::Error::new(ErrorKind::InvalidData, format!("TLS: {error}")));
        }
        Ok(())
    }
}

impl Drop for TlsStream {
    /// Sends `close_notify` if that does not block. Without it the server logs a warning.
    fn drop(&mut self) {
        self.tls.send_close_notify();
        let _ = self.flush();
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.receive()?,
                outcome => return outcome,
            }
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.tls.writer().write(bytes)?;
        self.flush()?;
        Ok(length)
    }

    /// Sends as much as possible without waiting.
    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.tcp) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn config(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let file = |what, path: &Path, problem: String| TlsError::File {
        what,
        path: path.to_owned(),
        problem,
    };
    let certificates = |what, path: &Path| {
        let read =
            CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(list) if list.is_empty() => Err(file(what, path, "no certificate in it".to_owned())),
            Ok(list) => Ok(list),
            Err(error) => Err(file(what, path, error.to_string())),
        }
    };
    let chain = certificates("certificate", &files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.private_key)
        .map_err(|error| file("private key", &files.private_key, error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates("CA certificate", &files.ca_certificate)? {
        roots
            .add(certificate)
            .map_err(|error| file("CA certificate", &files.ca_certificate, error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = if files.server_name.is_some() {
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier
            .map_err(|error| file("CA certificate", &files.ca_certificate, error.to_string()))?;
        builder.with_webpki_verifier(verifier)
    } else {
        let verifier = AnyName { roots, provider };
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    };
    Ok(builder.with_client_auth_cert(chain, key)?)
}

/// Accepts certificates that the authorities have signed, with any name.
#[derive(Debug)]
struct AnyName {
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
