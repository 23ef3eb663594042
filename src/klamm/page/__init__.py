"""Page for browsers of the broker and the gateway: its tables, and their contents as JSON documents.

==============  ======================================================================================================
``html``        Escaped cells, bounded tables with a pager, and the frame. Pure
``clients``     Connected clients: the configs that they run, should run and can take
``policies``    Policies: decisions by mode, rules, the latest decisions, results of audit mode
``topics``      Topics, and configs with their values and origins
``changes``     Latest config changes
``plot``        Small plots of recent values as inline SVG
``samples``     Samples of the last 15 minutes for the plots
``activity``    Requests, denials and waiting time of a server: their sampler and their plots
``views``       Functions that serve a document as JSON
==============  ======================================================================================================

The broker and the gateway collect the documents. All parts of the page are drawn from them, so a gateway of several
processes merges documents and draws one page.
"""
