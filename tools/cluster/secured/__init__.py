"""What `ottla cluster start --secure` makes: certificates, users with passwords and rights, and settings for clients (docs/SECURITY.md)."""
