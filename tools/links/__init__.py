"""`ottla links`: a proxy before all brokers of any Kafka, which breaks single requests by the rules of `protocol/conversation`.

links_command       the command
proxy               a port for each broker; follows the brokers, their leaders and the ids of topics
connection          one client's connection and that of the broker behind it: requests, answers, and what rules do to them
frames ●            frames in a stream of bytes
advertised ●        the addresses in answers, so that clients never go around the proxy
links_directory     the files by which commands find the proxy
"""
