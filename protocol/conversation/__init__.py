"""Faults in the conversation of clients and brokers: which requests they hit, and what becomes of these and of their answers.

    rule ●              one rule: its effect, its filters, how often it hits
    api_errors ●        the names of APIs, and the errors that each can give
    patterns ●          names with `*` and `?`
    asked ●             what a request names: topics, groups, transactional ids
    error_answers ●     the answer that has an error, made from the request
    leaders_before ●    where the leaders were some seconds ago
    rule_book           all rules: what happens to this request
    rule_lines          what the owner of the process says about its rules

A broker applies rules to what clients send to it (`broker/fault_injection`); the proxy of `ottla links` applies the same to any Kafka.
"""
