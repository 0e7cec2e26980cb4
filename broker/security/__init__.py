"""Who a client is: its login by SASL, its certificate, and the users whose passwords this broker can check."""
