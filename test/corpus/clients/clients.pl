# Sends the cases as Perl's clients write them: perl clients.pl <library> <address> <file of cases>
use strict;
use warnings;
use JSON::PP;

my ($library, $base, $file) = @ARGV;
my $json = JSON::PP->new->utf8->canonical;
my $send;
if ($library eq 'lwp') {
    require LWP::UserAgent;
    require HTTP::Request::Common;
    my $agent = LWP::UserAgent->new;
    $send = sub {
        my ($path, %r) = @_;
        my $url = URI->new($base . $path);
        $url->query_form(map { my $v = $_; utf8::encode($v); $v } @{ $r{query} }) if $r{query};
        my @headers = %{ $r{headers} // {} };
        my $request = $r{form} ? HTTP::Request::Common::POST($url, [map { my $v = $_; utf8::encode($v); $v } @{ $r{form} }], @headers)
            : $r{json} ? HTTP::Request::Common::POST($url, 'Content-Type' => 'application/json', Content => $json->encode($r{json}), @headers)
            : HTTP::Request::Common::GET($url, @headers);
        $agent->request($request);
    };
}
elsif ($library eq 'tiny') {
    require HTTP::Tiny;
    my $agent = HTTP::Tiny->new;
    $send = sub {
        my ($path, %r) = @_;
        my $url = $base . $path . ($r{query} ? '?' . $agent->www_form_urlencode($r{query}) : '');
        my %headers = %{ $r{headers} // {} };
        $r{form} ? $agent->post_form($url, $r{form}, { headers => \%headers })
            : $r{json} ? $agent->post($url, { headers => { %headers, 'Content-Type' => 'application/json' }, content => $json->encode($r{json}) })
            : $agent->get($url, { headers => \%headers });
    };
}
else {
    require Mojo::UserAgent;
    require Mojo::URL;
    my $agent = Mojo::UserAgent->new;
    $send = sub {
        my ($path, %r) = @_;
        my $url = Mojo::URL->new($base . $path);
        $url->query(@{ $r{query} }) if $r{query};
        my $headers = $r{headers} // {};
        $r{form} ? $agent->post($url, $headers, form => { @{ $r{form} } }) : $r{json} ? $agent->post($url, $headers, json => $r{json}) : $agent->get($url, $headers);
    };
}

require URI::Escape;
open my $cases, '<:encoding(UTF-8)', $file or die $!;
while (my $line = <$cases>) {
    chomp $line;
    my ($format, $n, $id, $text, $url) = split /\t/, $line;
    my $path = "/$format/$n";
    my @fields = (name => $text, id => $id, url => $url, page => 2);
    my @nested = ('order[name]' => $text, 'order[id]' => $id, 'order[items][0][id]' => 7, utf8 => "\x{2713}");
    if ($format eq 'query') { $send->($path, query => \@fields) }
    elsif ($format eq 'nested-query') { $send->($path, query => \@nested) }
    elsif ($format eq 'form') { $send->($path, form => \@fields) }
    elsif ($format eq 'nested-form') { $send->($path, form => \@nested) }
    elsif ($format eq 'json') {
        $send->($path, json => { name => $text, id => $id =~ /^\d{1,15}$/ ? $id + 0 : $id, url => $url, items => [{ id => 7, price => 12.5 }], ok => JSON::PP::true(), none => undef });
    }
    elsif ($format eq 'cookie') { $send->($path, headers => { Cookie => 'theme=dark; cart_id=' . URI::Escape::uri_escape_utf8($id) . '; seen=' . URI::Escape::uri_escape_utf8($text) }) }
    elsif ($format eq 'header') { $send->($path, json => { name => $text }, headers => { 'X-Order' => $id }) }
    else { $send->("$path/" . URI::Escape::uri_escape_utf8($id), query => \@fields, json => {}) }
}
