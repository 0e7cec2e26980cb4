"""The containers of docker-compose.yml: a demo of them."""
